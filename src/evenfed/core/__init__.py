"""The vocabulary of a round and the only aggregation code; depends on torch and numpy alone."""

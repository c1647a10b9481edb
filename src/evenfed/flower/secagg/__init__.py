"""Private rounds: the server learns sums over clients and nothing about single ones (SecAgg+)."""

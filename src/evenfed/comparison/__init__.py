"""Several algorithms and seeds on the same clients: planned, carried out, kept and read back."""

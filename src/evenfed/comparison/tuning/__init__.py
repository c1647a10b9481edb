"""Hyper-parameters: what is searched, by which workers, and how the best entry is chosen."""

"""Runs and comparisons on disk: folders, headers, rounds, checkpoints, packed files, and what reads them back."""

"""Work spread over the GPUs of a machine, a Ray cluster or SLURM jobs; what is lost with a worker is done by another.

This room knows nothing of runs: an errand is a function without arguments, which goes on where the last one stopped.
"""

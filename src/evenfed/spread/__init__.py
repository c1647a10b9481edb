"""Workers on the GPUs of a machine, a Ray cluster or SLURM. If one is lost, another resumes its work.

The package knows nothing of runs: a task is a function without arguments that can be interrupted and called again.
"""

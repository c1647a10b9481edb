"""Callbacks: watch runs, end one, or write them to a tracker.

A callback has any of `start(runs)`, `round(progress)`, `end(progress)` and `close()`. A bare function is `round`.

>>> import torch, evenfed
>>> data = (torch.randn(6, 4), torch.randint(0, 3, (6,)))
>>> clients = [evenfed.Client(data, data), evenfed.Client(data, data)]
>>> def stop_early(progress):
...     if progress.round == 2:
...         progress.stop("seen enough")
>>> result = evenfed.train(torch.nn.Linear(4, 3), clients, rounds=50, callbacks=stop_early)
>>> len(result.records), result.stopped
(2, 'seen enough')
"""

from .early_stopping import EarlyStopping
from .mlflow import MLflow
from .progress import Callback, Callbacks, Progress, callback_list
from .tensorboard import TensorBoard
from .wandb import WandB

__all__ = [
    "Callback",
    "Callbacks",
    "EarlyStopping",
    "MLflow",
    "Progress",
    "TensorBoard",
    "WandB",
    "callback_list",
]

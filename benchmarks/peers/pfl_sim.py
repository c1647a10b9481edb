"""Time FedAvg rounds of the shared workload in pfl's simulated backend (PyTorch bridge, torchrun workers)."""

import os
import sys
import time
from importlib.metadata import version

import torch
import torch.distributed.run
import work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn


class MLP(nn.Sequential):
    """The model with the loss and the metrics that pfl asks of it."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(work.FEATURES, work.HIDDEN), nn.ReLU(), nn.Linear(work.HIDDEN, work.CLASSES))
        for parameter, value in zip(self.parameters(), work.initial_parameters(), strict=True):
            parameter.data = torch.from_numpy(value)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy of a batch."""
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        """Return no metrics: nothing is evaluated during training."""
        return {}


class Clock(TrainingProcessCallback):
    """Note when each round ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Note the time and let training go on."""
        self.ends.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    """Run the rounds and report."""
    rounds, warmup = work.parse_rounds()
    users = [PyTorchTensorDataset((torch.from_numpy(x), torch.from_numpy(y))) for x, y in work.load_clients()]
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", range(work.CLIENTS)))
    module, clock = MLP(), Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=warmup + rounds,
            evaluation_frequency=warmup + rounds,
            train_cohort_size=work.CLIENTS,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(local_batch_size=work.BATCH, local_num_epochs=1, local_learning_rate=work.LEARNING_RATE),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if os.environ["RANK"] == "0":
        parameters = [parameter.detach().numpy() for parameter in module.parameters()]
        work.report("pfl", version("pfl"), clock.ends, warmup, parameters)
    torch.distributed.barrier()  # a worker that leaves early takes the other down
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    if torch.distributed.is_torchelastic_launched():
        main()
    else:
        workers = ["--standalone", f"--nproc-per-node={work.WORKERS}"]
        torch.distributed.run.main([*workers, *sys.argv])

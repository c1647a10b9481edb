"""pfl's CIFAR-10 IID benchmark in pfl itself, one process; images stay on the device."""

from importlib.metadata import version

import task as iid
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Cnn(nn.Module):
    """The model with the loss and the metrics that pfl asks of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = iid.initial_model()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        """The mean cross entropy of a batch."""
        self.train(not eval)
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, float]:
        """None: the test set is measured by the callback."""
        return {}


class Watch(TrainingProcessCallback):
    """Notes when each round ended, and the test accuracy every few rounds."""

    def __init__(self, task: iid.Task, clock: iid.Clock, test: tuple[Tensor, Tensor]) -> None:
        self.task = task
        self.clock = clock
        self.test = test
        self.accuracies: dict[int, float] = {}

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Go on after every round."""
        done = central_iteration + 1
        if done % self.task.test_every == 0:
            self.accuracies[done] = round(iid.accuracy(model.pytorch_model, self.test), 4)
        if self.task.device == "cuda":
            torch.cuda.synchronize()
        self.clock.tick()
        return False, Metrics()


def main() -> None:
    """Run the rounds and report."""
    clock = iid.Clock()
    task = iid.Task.parse()
    data = iid.load(task)
    users = []
    for images, labels in data.users:
        users.append(PyTorchTensorDataset((images.to(task.device), labels.to(task.device))))
    federation = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", range(len(users))))
    module = Cnn().to(task.device)
    test = (data.test[0].to(task.device), data.test[1].to(task.device))
    watch = Watch(task, clock, test)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=task.rounds + 1,
            train_cohort_size=task.cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=federation, val_data=federation, postprocessors=[WeightByUser()]),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(local_batch_size=task.batch, local_num_epochs=1, local_learning_rate=task.lr),
        callbacks=[watch],
        send_metrics_to_platform=False,
    )
    iid.report("pfl", version("pfl"), task, len(users), clock, watch.accuracies)


if __name__ == "__main__":
    main()

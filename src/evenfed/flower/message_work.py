"""One message's work at a site: the models it brings, loaded, scored and made ready to train."""

from dataclasses import dataclass

import torch
from flwr.app import Message
from torch import Tensor

from ..simulate import evaluation
from ..simulate.engines.worker import Worker
from ..simulate.problem import Problem, Task
from . import wire
from .array_layout import ArrayLayout

Buffers = dict[str, Tensor]  # by name


@dataclass(frozen=True)
class MessageWork:
    """This site's data and a worker for it."""

    position: int
    problem: Problem
    worker: Worker

    @property
    def train_size(self) -> int:
        return int(self.problem.train.sizes[self.position])

    def layout(self, message: Message) -> ArrayLayout:
        """The arrays of the message, in its order, which Flower's mods want back."""
        arrays = message.content.array_records[wire.ARRAYS]
        problem = self.problem
        parameters = problem.layout.names or ()
        buffers = [name for name in arrays if name in problem.buffers]
        return ArrayLayout.of(arrays, parameters, buffers)

    def receive(self, message: Message, record: str = wire.ARRAYS) -> tuple[Tensor, Buffers]:
        arrays = message.content.array_records[record]
        model = self.layout(message).read(arrays)
        theta = model.theta.to(self.problem.theta)
        buffers = {name: buffer.to(self.problem.device) for name, buffer in model.buffers.items()}
        self.worker.load(theta, buffers)
        return theta, buffers

    def loss(self, message: Message, record: str) -> float:
        self.receive(message, record)
        return self.worker.mean(self.problem.loss, self.problem.train, self.position)

    def scores(self, message: Message, record: str, own: Tensor | None) -> dict[str, float]:
        """Of the message's model in that record, or of the client's `own`, with the buffers of the message."""
        theta, buffers = self.receive(message, record)
        if own is not None:
            self.worker.load(own.to(theta), buffers)
        return evaluation.score_of_client(self.worker, self.position)

    def training(self, task: wire.Task, theta: Tensor, buffers: Buffers) -> Task:
        snapshot_steps = None
        if task.snapshot_step:
            snapshot_steps = torch.tensor([task.snapshot_step])
        return Task(
            index=task.index,
            seed=task.seed if task.local_seed is None else task.local_seed,
            theta=theta,
            ids=torch.tensor([self.position]),
            local=task.local(),
            snapshot_steps=snapshot_steps,
            local_loss=task.local_loss(),
            buffers=buffers,
        )

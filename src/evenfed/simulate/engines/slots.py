"""Clients of all runs in a fixed number of slots, refilled as they fall free: every step has the same shapes.

One step of all slots is one recorded graph, fed with batches gathered from data that stay on the device: it computes
the gradients of the stacked parameters, and moves these. It is the same for every federation, so that the compiler's
cache serves the next one. Nothing waits for the host until a round's end.
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import trees
from ...clients.client import Pool, explain_out_of_memory
from ...core.errors import InputError, first_line
from ...core.streams import Batching
from ...local.training import LocalTraining
from ...losses import Functions, values
from ...settings import Precision
from ..layers.replay import Replay
from ..problem import EvalRequest, EvalResult, LocalLoss, Problem, Task, Updates
from ..totals import add_by_class
from .jobs import of_equal_form
from .memory import DeviceInputs, Made, example_shapes, none_if_out_of_memory
from .network import SlotModel
from .schedule import Schedule
from .slot_round import Scheduled, SlotRound
from .step import SlotStep
from .vectorised import Vectorised, fetched

MEASURED_ROWS = {"cuda": 12544}  # examples in one forward pass of a measurement; two passes see 25,000 images
MEASURED_ROWS_ELSEWHERE = 5120


class Slots(Vectorised):
    """Trains `slots` clients at a time; parameters are kept in full, and computed with in `precision`."""

    def __init__(
        self,
        problem: Problem,
        slots: int,
        precision: Precision = "fp32",
    ) -> None:
        super().__init__(problem, slots)
        self.network = SlotModel(problem, self.model, precision)
        self.wanted_slots = slots
        self.schedule = lru_cache(maxsize=16)(self._schedule)
        self.steps: dict[
            Hashable, SlotStep
        ] = {}  # by form of local training, whether clients are pulled, and local losses
        self.local_losses: dict[Hashable, LocalLoss] = {}
        self.measures: dict[Hashable, EvaluationGraph] = {}  # by the shape and type of examples
        self.wanted_rows = MEASURED_ROWS.get(problem.device.type, MEASURED_ROWS_ELSEWHERE)
        self.measured_rows = self.wanted_rows
        self.resident: dict[int, DeviceInputs] = {}  # by the id of the pool
        with explain_out_of_memory(problem.train.inputs):
            for pool in (problem.train, problem.judged):
                if pool is not None:
                    self.resident[id(pool)] = DeviceInputs.of(pool.inputs)

    @property
    def how(self) -> str:
        """What runs, and what was left out."""
        replays = [step.replay for step in self.steps.values()]
        replays += [measure.replay for measure in self.measures.values()]
        traits: list[str] = [self.network.precision]
        if self.problem.device.type != "cuda":
            traits.append("traced")
        else:
            if all(replay.compiled for replay in replays):
                traits.append("compiled")
            if all(replay.graph is not None for replay in replays):
                traits.append("one CUDA graph per step")
        notes = set()
        for replay in replays:
            notes.update(replay.notes)
            if replay.has_kernels:
                notes.add("large convolutions by kernels of its own")
        if self.slots < self.wanted_slots:
            notes.add(f"{self.wanted_slots} did not fit into the device's memory")
        if self.measured_rows < self.wanted_rows:
            notes.add(f"measured {self.measured_rows} examples at a time, as more did not fit")
        if self.network.plain:
            layers = ", ".join(sorted(self.network.plain))
            notes.add(f"left to torch's own grouped form, which is slower: {layers}")
        details = "; ".join([", ".join(traits), *sorted(notes)])
        return f"{self.slots} slots refilled with clients of all runs, {details}"

    def train(self, tasks: Sequence[Task]) -> Updates:
        """Tasks whose local training has the same form are one queue, in which each run's updates come back together,
        when its last client has ended.
        """
        for members in of_equal_form(tasks):
            shift = self._shift([tasks[which] for which in members])
            for position, update in shift.updates():
                yield members[position], update

    def _shift(self, tasks: Sequence[Task]) -> SlotRound:
        unified = []
        local_losses: dict[LocalLoss, None] = {}  # in the order in which they occur
        pulled = False
        for task in tasks:
            local_loss = self._unified(task.local_loss)
            unified.append(dataclasses.replace(task, local_loss=local_loss))
            if local_loss is not None:
                local_losses[local_loss] = None
            pulled |= task.local.prox > 0
        step = self._step(tasks[0].local.form, pulled, tuple(local_losses))
        return SlotRound(step, unified, self.schedule)

    def _unified(self, local_loss: LocalLoss | None) -> LocalLoss | None:
        """Methods of equal algorithms are one, so that their step is made once."""
        if local_loss is None:
            return None
        function = getattr(local_loss, "__func__", local_loss)
        algorithm = getattr(local_loss, "__self__", None)
        return self.local_losses.setdefault((function, algorithm), local_loss)

    def _schedule(
        self,
        sizes: bytes,
        slots: int,
        batching: Batching,
    ) -> Scheduled:
        """The schedule with its table on the device; most rounds have the same."""
        device = self.problem.device
        schedule = Schedule.of(np.frombuffer(sizes, dtype=np.int64), slots, batching)
        first = torch.from_numpy(schedule.first)
        count = torch.from_numpy(schedule.count)
        return schedule, first.to(device), count.to(device)

    def _step(
        self,
        form: LocalTraining,
        pulled: bool,
        local_losses: tuple[LocalLoss, ...],
    ) -> SlotStep:
        """Made when first needed, with fewer slots if the device's memory is too small."""
        width = form.batching.width(self.problem.train.sizes.numpy())
        resident = self.resident[id(self.problem.train)]
        form = dataclasses.replace(form, batching=Batching(width))
        key = (form, pulled, local_losses)

        def make() -> SlotStep:
            return SlotStep(
                network=self.network,
                resident=resident,
                count=self.slots,
                width=width,
                form=form,
                pulled=pulled,
                local_losses=local_losses,
            )

        while key not in self.steps:
            step = self._fitting(make)
            if step is not None:
                self.steps[key] = step
            elif not self.shrink():
                raise InputError(
                    f"the device's memory does not hold one client's training step ({len(self.problem.theta)} "
                    f"parameters, batch of {width}); use a smaller batch_size or model"
                )
        return self.steps[key]

    def _resident(self, pool: Pool) -> DeviceInputs:
        if id(pool) not in self.resident:
            with explain_out_of_memory(pool.inputs):
                self.resident[id(pool)] = DeviceInputs.of(pool.inputs)
        return self.resident[id(pool)]

    def _measure_of(self, pool: Pool) -> "EvaluationGraph":
        """Made when first needed, with shorter passes if the device's memory is too small."""
        resident = self._resident(pool)
        longest = max(len(each) for each in self.resident.values())
        key = resident.form
        while key not in self.measures:
            length = min(self.measured_rows, longest)
            measure = self._fitting(partial(EvaluationGraph, self.network, resident, length))
            if measure is not None:
                self.measures[key] = measure
            elif length == 1:
                raise InputError(
                    f"the device's memory does not hold the model's outputs for one example ({len(self.problem.theta)} "
                    "parameters); use a smaller model"
                )
            else:
                self.measured_rows = length // 2
        return self.measures[key]

    def _fitting(self, make: Callable[[], Made]) -> Made | None:
        """None if memory is too small. Types that a model mixes and torch refuses in bf16 are an input error."""
        try:
            return none_if_out_of_memory(make)
        except RuntimeError as error:
            if not self.network.is_rounded:
                raise
            raise InputError(
                f"the model cannot be computed in bf16 ({first_line(error)}); use precision='tf32' or 'fp32'"
            ) from error

    def shrink(self) -> bool:
        self.steps.clear()
        return super().shrink()

    def _shared_data(
        self,
        thetas: Tensor,
        ids: Tensor,
        pool: Pool,
        of: Functions,
        classes: int | None,
    ) -> list[EvalResult]:
        device = pool.targets.device
        asks_all = len(ids) == len(pool.sizes)
        rows = torch.arange(len(pool), device=device) if asks_all else pool.rows(ids).to(device)
        measure = self._measure_of(pool)
        inputs = self._resident(pool)
        values = [measure(theta, pool, inputs, rows, of) for theta in thetas]
        table = torch.stack(values, 1).double()  # [rows, runs, len(of)]
        lengths = pool.sizes[ids].to(device)
        totals = torch.segment_reduce(
            data=table,
            reduce="sum",
            lengths=lengths,
            axis=0,
            initial=0.0,
            unsafe=True,  # checking the lengths would wait for the device
        )
        means = totals.permute(1, 2, 0) / lengths
        by_class = torch.zeros(len(thetas), classes or 0, dtype=torch.float64, device=device)
        if classes is not None:
            right = table[:, :, -1].T
            add_by_class(by_class, right, pool.targets[rows])
        return fetched(means, by_class, classes)

    def _own_models(
        self,
        question: EvalRequest,
        pool: Pool,
        of: Functions,
        classes: int | None,
    ) -> EvalResult:
        measure = self._measure_of(pool)
        inputs = self._resident(pool)
        device = pool.targets.device
        functions = len(of)
        no_data = torch.full((functions,), torch.nan, dtype=torch.float64, device=device)
        by_class = torch.zeros(classes or 0, dtype=torch.float64, device=device)
        means = []
        for client in question.ids.tolist():
            start = int(pool.starts[client])
            size = int(pool.sizes[client])
            if size == 0:
                means.append(no_data)
                continue
            rows = torch.arange(start, start + size, device=device)
            model = question.model_of(client)
            values = measure(model, pool, inputs, rows, of)
            means.append(values.double().mean(0))
            if classes is not None:
                right = values[:, -1]
                add_by_class(by_class, right, pool.targets[rows])
        table = torch.stack(means, dim=1)
        (answer,) = fetched(table[None], by_class[None], classes)
        return answer


class EvaluationGraph:
    """A model's outputs over pools of examples like those of `resident`, `length` at a time, and a value of each."""

    def __init__(self, network: SlotModel, resident: DeviceInputs, length: int) -> None:
        problem = network.problem
        self.network = network
        self.resident = resident
        self.length = length
        like_training = resident.shapes == example_shapes(problem.train.inputs)
        self.live = network.live(crop=like_training)  # other taps may meet an image of another size
        self.theta = network.zeros(len(self.live))
        self.inputs = resident.empty(length)
        network.model.eval()
        with torch.no_grad():
            self.replay = Replay(self._outputs, (self.theta, *self.inputs))

    def __call__(
        self,
        theta: Tensor,
        pool: Pool,
        inputs: DeviceInputs,
        rows: Tensor,
        of: Functions,
    ) -> Tensor:
        """[len(rows), len(of)] values of these rows of the pool, whose inputs lie in `inputs`."""
        self.theta.copy_(theta[self.live.columns])
        table = self.network.zeros(len(rows), len(of))
        for start in range(0, len(rows), self.length):
            end = start + self.length
            part = rows[start:end]
            count = len(part)
            buffers = [buffer[:count] for buffer in self.inputs]
            inputs.gather(part, buffers)
            outputs = trees.output_rows(self.replay(), slice(count))
            targets = pool.targets[part]
            table[start:end] = values(of, outputs, targets)
        return table

    def _outputs(self, theta: Tensor, *inputs: Tensor) -> Any:
        network = self.network
        weights, rest = self.live.split(theta)
        weights = weights.to(network.compute)
        examples = self.resident.examples(inputs)
        return network.outputs(self.live, weights, rest, examples, stacked=False)

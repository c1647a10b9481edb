"""One local step of all slots: traced, compiled and recorded once, then replayed on batches that stay on the device."""

from functools import partial

import torch
from torch import Tensor
from torch.func import vmap

from ...core.maths import slope
from ...core.server import OptimizerStates
from ...local.optimizer import clip_factor
from ...local.training import LocalTraining
from ...trees import Inputs
from ..layers.dropout import Masks
from ..layers.replay import Replay
from ..problem import LocalLoss
from .augmenting import augmented
from .memory import DeviceInputs
from .network import SlotModel


class SlotStep:
    """One step of `count` slots with batches of up to `width` examples, in place.

    `form`: the local training of all slots. `pulled`: some clients are pulled towards their incoming model.
    `local_losses`: all changed losses that occur.
    """

    def __init__(
        self,
        network: SlotModel,
        resident: DeviceInputs,
        count: int,
        width: int,
        form: LocalTraining,
        pulled: bool,
        local_losses: tuple[LocalLoss, ...],
    ) -> None:
        self.network = network
        self.resident = resident
        self.count = count
        self.width = width
        self.pulled = pulled
        self.local_losses = local_losses
        self.form = form
        moves_all = pulled or form.optimizer.weight_decay > 0  # parameters without a gradient too
        self.live = network.live(crop=not moves_all)
        weights, rest = self.live.sizes
        self.weights = network.zeros(count, weights)
        self.rest = network.zeros(count, rest)
        self.rounded = self.weights[:, :0]
        if network.is_rounded:
            self.rounded = self.weights.to(network.compute)  # written together with the weights
        self.anchor = network.zeros(count, len(self.live) if pulled else 0)
        unused = network.problem.unused if form.optimizer.weight_decay else None
        self.decays_all = unused is None
        self.idle = torch.zeros_like(self.live.columns[:0]).bool()  # [L] entries that no optimiser moves
        if unused is not None:
            self.idle = unused[self.live.columns]
        fresh = form.optimizer.fresh
        self.moments = (fresh(self.weights).values, fresh(self.rest).values)  # always in full precision
        self.taken = fresh(self.rest).taken[:, None]
        self.lr = network.zeros(count, 1)
        self.prox = network.zeros(count, 1)
        self.kind = torch.zeros(count, dtype=torch.int64, device=self.lr.device)
        self.pool_targets = network.problem.train.targets
        self.inputs = resident.empty(count * width)
        self.targets = self.pool_targets.new_zeros((count * width, *self.pool_targets.shape[1:]))
        self.mask = network.zeros(count, width)
        self.keys = torch.zeros_like(self.kind)
        network.problem.in_training(network.model)
        arguments = (
            self.weights,
            self.rest,
            self.rounded,
            self.anchor,
            self.idle,
            *self.moments,
            self.taken,
            self.lr,
            self.prox,
            self.kind,
            self.targets,
            self.mask,
            self.keys,
            *self.inputs,
        )
        self.replay = Replay(self._descend, arguments)

    def __call__(
        self,
        rows: Tensor,
        mask: Tensor,
        keys: Tensor,
    ) -> None:
        """On these examples [slots, width] of the pool; `mask` is 0 for those that only fill a batch up.

        `keys` [slots]: of each slot's random numbers in this step.
        """
        flat = rows.flatten()
        self.resident.gather(flat, self.inputs)
        torch.index_select(self.pool_targets, 0, flat, out=self.targets)
        self.mask.copy_(mask)
        self.keys.copy_(keys)
        self.replay()

    def kind_of(self, local_loss: LocalLoss | None) -> int:
        """The index of this local loss in `kind`; 0 is the loss itself."""
        if local_loss is None:
            return 0
        return 1 + self.local_losses.index(local_loss)

    def put(
        self,
        slots: Tensor | int,
        vectors: Tensor,
    ) -> None:
        """Write new parameters into some slots, whose optimisers start afresh."""
        weights, rest = self.live.split(vectors)
        if self.form.optimizer.moments:
            for table in self.moments:
                table[slots] = 0
            self.taken[slots] = 0
        self.weights[slots] = weights
        self.rest[slots] = rest
        if self.network.is_rounded:
            self.rounded[slots] = weights.to(self.rounded.dtype)

    def put_moments(
        self,
        slots: Tensor | int,
        moments: OptimizerStates,
    ) -> None:
        """Go on with these states of the slots' optimisers."""
        live_values = moments.values[..., self.live.columns]
        parts = self.live.split(live_values)
        for table, part in zip(self.moments, parts, strict=True):
            table[slots] = part
        self.taken[slots] = moments.taken[..., None]

    def get_moments(self, slots: Tensor | int) -> OptimizerStates:
        """The states of the slots' optimisers; of parameters that do not learn they stay zero."""
        weights, rest = self.moments
        live = torch.cat([weights[slots], rest[slots]], -1)
        leading = live.shape[:-1]
        whole = live.new_zeros(*leading, len(self.network.problem.theta))
        whole[..., self.live.columns] = live
        return OptimizerStates(whole, self.taken[slots].squeeze(-1))

    def get(self, slots: Tensor | int) -> Tensor:
        """The parameters in some slots."""
        weights = self.weights[slots]
        rest = self.rest[slots]
        return torch.cat([weights, rest], -1)

    def _descend(
        self,
        weights: Tensor,
        rest: Tensor,
        rounded: Tensor,
        anchor: Tensor,
        idle: Tensor,
        weight_moments: Tensor,
        rest_moments: Tensor,
        taken: Tensor,
        lr: Tensor,
        prox: Tensor,
        kind: Tensor,
        targets: Tensor,
        mask: Tensor,
        keys: Tensor,
        *inputs: Tensor,
    ) -> None:
        """One step of the optimiser down the local loss and prox / 2 |theta_i - theta|^2, in every slot."""
        used = rounded if self.network.is_rounded else weights
        rows = [tensor.unflatten(0, mask.shape) for tensor in inputs]
        x = self.resident.examples(rows)
        if self.form.augment is not None:
            x = vmap(partial(augmented, self.form.augment))(x, keys)
        y = targets.unflatten(0, mask.shape)
        gradients, losses = self._gradients(used, rest, x, y, mask, keys)
        factors = self._factors(losses, kind)

        thetas = (weights, rest)
        anchors = (anchor, anchor)
        if self.pulled:
            anchors = self.live.split(anchor)
        steps = []
        for theta, gradient, origin in zip(thetas, gradients, anchors, strict=True):
            step = gradient.to(theta.dtype)
            if factors is not None:
                step = step * factors
            if self.pulled:
                step = step + prox * (theta - origin)
            steps.append(step)
        if self.form.clip is not None:
            factor = clip_factor(steps, self.form.clip)
            steps = [factor * step for step in steps]
        optimizer = self.form.optimizer
        tables = (weight_moments, rest_moments)
        idles = (idle, idle) if self.decays_all else self.live.split(idle)
        for theta, step, moments, without_gradient in zip(thetas, steps, tables, idles, strict=True):
            own = [moments[:, m] for m in range(optimizer.moments)]
            direction = optimizer.direction(theta, step, own, taken)
            if not self.decays_all:
                direction = direction.masked_fill(without_gradient & (prox == 0), 0)
            moved = theta - lr * direction
            theta.copy_(moved)
            if self.network.is_rounded and theta is weights:
                rounded.copy_(moved)
        if optimizer.moments:
            taken.add_(1)

    def _gradients(
        self,
        weights: Tensor,
        rest: Tensor,
        x: Inputs,
        y: Tensor,
        mask: Tensor,
        keys: Tensor,
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Gradients of `weights` and `rest`, and the value [slots], of each slot's batch loss."""
        network = self.network

        def batch_loss(
            weights: Tensor,
            rest: Tensor,
            x: Inputs,
            y: Tensor,
            mask: Tensor,
            key: Tensor,
        ) -> Tensor:
            with Masks(key):
                outputs = network.outputs(self.live, weights, rest, x, stacked=True)
            return network.problem.batch_loss(outputs, y, mask)

        weights = weights.detach().requires_grad_()
        rest = rest.detach().requires_grad_()
        with torch.enable_grad():
            losses = vmap(batch_loss)(weights, rest, x, y, mask, keys)
            gradients = torch.autograd.grad(
                outputs=losses.sum(), inputs=(weights, rest), allow_unused=True, materialize_grads=True
            )
        return gradients, losses.detach()

    def _factors(
        self,
        losses: Tensor,
        kind: Tensor,
    ) -> Tensor | None:
        """[slots, 1] the chain rule through a changed local loss; None where no loss is changed."""
        if not self.local_losses:
            return None
        factors = torch.ones_like(losses)
        for number, local_loss in enumerate(self.local_losses, start=1):
            is_changed = kind == number
            slopes = slope(local_loss, losses)
            factors = torch.where(is_changed, slopes, factors)
        return factors[:, None]

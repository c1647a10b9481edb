"""One SGD step of all slots: traced, compiled and recorded once, then replayed on batches that stay on the device."""

import torch
from torch import Tensor
from torch.func import vmap

from ...trees import Inputs
from ..layers.dropout import Masks
from ..layers.replay import Replay
from ..problem import LocalLoss, slope
from .memory import Resident
from .network import Network


class Step:
    """One SGD step of `count` slots with batches of up to `width` examples, in place.

    `pulled`: some clients are pulled towards their incoming model. `local_losses`: all changed losses that occur.
    """

    def __init__(
        self,
        network: Network,
        resident: Resident,
        count: int,
        width: int,
        pulled: bool,
        local_losses: tuple[LocalLoss, ...],
    ) -> None:
        self.network = network
        self.resident = resident
        self.count = count
        self.width = width
        self.pulled = pulled
        self.local_losses = local_losses
        self.live = network.live(crop=not pulled)  # if pulled, parameters without a gradient move too
        weights, rest = self.live.sizes
        self.weights = network.zeros(count, weights)
        self.rest = network.zeros(count, rest)
        self.rounded = self.weights[:, :0]
        if network.is_rounded:
            self.rounded = self.weights.to(network.compute)  # written together with the weights
        self.anchor = network.zeros(count, len(self.live) if pulled else 0)
        self.lr = network.zeros(count, 1)
        self.prox = network.zeros(count, 1)
        self.kind = torch.zeros(count, dtype=torch.int64, device=self.lr.device)
        self.pool_targets = network.problem.train.targets
        self.inputs = resident.empty(count * width)
        self.targets = _empty_rows(self.pool_targets, count * width)
        self.mask = network.zeros(count, width)
        self.keys = torch.zeros_like(self.kind)
        network.problem.in_training(network.model)
        arguments = (
            self.weights,
            self.rest,
            self.rounded,
            self.anchor,
            self.lr,
            self.prox,
            self.kind,
            self.targets,
            self.mask,
            self.keys,
            *self.inputs,
        )
        self.replay = Replay(self._descend, arguments)

    def __call__(self, rows: Tensor, mask: Tensor, keys: Tensor) -> None:
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
        """What stands in `kind` for a slot with this local loss: 0 for the loss itself."""
        if local_loss is None:
            return 0
        return 1 + self.local_losses.index(local_loss)

    def put(self, slots: Tensor | int, vectors: Tensor) -> None:
        """Write new parameters into some slots."""
        weights, rest = self.live.split(vectors)
        self.weights[slots] = weights
        self.rest[slots] = rest
        if self.network.is_rounded:
            self.rounded[slots] = weights.to(self.rounded.dtype)

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
        lr: Tensor,
        prox: Tensor,
        kind: Tensor,
        targets: Tensor,
        mask: Tensor,
        keys: Tensor,
        *inputs: Tensor,
    ) -> None:
        """theta_i <- theta_i - lr (gradient + prox (theta_i - theta)), in every slot."""
        used = rounded if self.network.is_rounded else weights
        rows = [tensor.unflatten(0, mask.shape) for tensor in inputs]
        x = self.resident.examples(rows)
        y = targets.unflatten(0, mask.shape)
        gradients, losses = self._gradients(used, rest, x, y, mask, keys)
        factors = self._factors(losses, kind)

        def move(theta: Tensor, gradient: Tensor, origin: Tensor) -> Tensor:
            gradient = gradient.to(theta.dtype)
            if factors is not None:
                gradient = gradient * factors
            if self.pulled:
                gradient = gradient + prox * (theta - origin)
            moved = theta - lr * gradient
            theta.copy_(moved)
            return moved

        anchors = self.live.split(anchor) if self.pulled else (anchor, anchor)
        moved = move(weights, gradients[0], anchors[0])
        if self.network.is_rounded:
            rounded.copy_(moved)
        move(rest, gradients[1], anchors[1])

    def _gradients(
        self, weights: Tensor, rest: Tensor, x: Inputs, y: Tensor, mask: Tensor, keys: Tensor
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Gradients of `weights` and `rest`, and the value [slots], of each slot's batch loss."""
        network = self.network

        def batch_loss(weights: Tensor, rest: Tensor, x: Inputs, y: Tensor, mask: Tensor, key: Tensor) -> Tensor:
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

    def _factors(self, losses: Tensor, kind: Tensor) -> Tensor | None:
        """[slots, 1] the chain rule through a changed local loss; None where no loss is changed."""
        if not self.local_losses:
            return None
        factors = torch.ones_like(losses)
        for number, local_loss in enumerate(self.local_losses, start=1):
            is_changed = kind == number
            factors = torch.where(is_changed, slope(local_loss, losses), factors)
        return factors[:, None]


def _empty_rows(like: Tensor, count: int) -> Tensor:
    """[count, ...] zeros, each row like a row of `like`."""
    return like.new_zeros((count, *like.shape[1:]))

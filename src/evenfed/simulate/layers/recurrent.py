"""LSTM, GRU and plain recurrent layers written so that they can be stacked.

torch's fused recurrent kernels have no batching rule; inside `Rewritten(RULES)` they become one matrix product
for all time steps and one for each, with the same equations and parameters.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .rewriting import Rules


def make_stackable(model: nn.Module) -> bool:
    """Whether the model has recurrent layers; theirs must not ask where in memory their weights lie."""
    found = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    for module in found:
        module.flatten_parameters = lambda: None  # type: ignore[method-assign]
    return bool(found)


@contextmanager
def wherever_weights_lie() -> Iterator[None]:
    """Without torch's advice on a GPU to put a recurrent layer's weights together: a probe is called once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        yield


Cell = Callable[..., tuple[Tensor, ...]]


def _lstm(gates: Tensor, hidden: Tensor, w: Tensor, b: Tensor | None, cell: Tensor) -> tuple[Tensor, ...]:
    i, f, g, o = (gates + _linear(hidden, w, b)).chunk(4, -1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru(gates: Tensor, hidden: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, ...]:
    (r, z, n), (hr, hz, hn) = gates.chunk(3, -1), _linear(hidden, w, b).chunk(3, -1)
    update = (z + hz).sigmoid()
    return ((1 - update) * (n + (r + hr).sigmoid() * hn).tanh() + update * hidden,)


def _tanh(gates: Tensor, hidden: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, ...]:
    return ((gates + _linear(hidden, w, b)).tanh(),)


def _relu(gates: Tensor, hidden: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, ...]:
    return ((gates + _linear(hidden, w, b)).relu(),)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight.T if bias is None else x @ weight.T + bias


def _recurrence(
    cell: Cell,
    inputs: Tensor,
    states: Any,
    flat: list[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...] | None:
    """torch's signature and results: (outputs, last states...); packed sequences keep torch's own form."""
    if not isinstance(has_biases, bool):
        return None
    start = states if isinstance(states, tuple | list) else (states,)
    sequence = inputs.transpose(0, 1) if batch_first else inputs
    count, directions = (4 if has_biases else 2), (2 if bidirectional else 1)
    last: list[list[Tensor]] = [[] for _ in start]
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            state = tuple(s[k] for s in start)
            w_in, w_hidden = flat[k * count], flat[k * count + 1]
            b_in, b_hidden = (flat[k * count + 2], flat[k * count + 3]) if has_biases else (None, None)
            gates = _linear(sequence, w_in, b_in)
            steps = range(len(sequence)) if direction == 0 else range(len(sequence) - 1, -1, -1)
            found = []
            for t in steps:
                state = cell(gates[t], state[0], w_hidden, b_hidden, *state[1:])
                found.append(state[0])
            outputs.append(torch.stack(found if direction == 0 else found[::-1]))
            for held, value in zip(last, state, strict=True):
                held.append(value)
        sequence = torch.cat(outputs, -1)
        if dropout and training and layer < layers - 1:
            sequence = torch.nn.functional.dropout(sequence, dropout)
    return (sequence.transpose(0, 1) if batch_first else sequence, *(torch.stack(held) for held in last))


RULES: Rules = {
    torch._VF.lstm: partial(_recurrence, _lstm),
    torch._VF.gru: partial(_recurrence, _gru),
    torch._VF.rnn_tanh: partial(_recurrence, _tanh),
    torch._VF.rnn_relu: partial(_recurrence, _relu),
}

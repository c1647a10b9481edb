"""LSTM, GRU and plain recurrent layers written so that they can be stacked.

torch's fused recurrent kernels have no batching rule. Inside `Rewritten(RULES)` they become one matrix product
for all time steps and one per step, with the same equations and parameters.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .rewriting import Rules

States = tuple[Tensor, ...]  # the hidden state, and an LSTM's cell


def make_stackable(model: nn.Module) -> None:
    """Recurrent layers must not ask where in memory their weights lie."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters = lambda: None  # type: ignore[method-assign]


@contextmanager
def wherever_weights_lie() -> Iterator[None]:
    """Without torch's advice on a GPU to put a recurrent layer's weights together: a probe is called once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        yield


class _Weights(NamedTuple):
    """The parameters of one layer in one direction."""

    w_in: Tensor
    w_hidden: Tensor
    b_in: Tensor | None = None
    b_hidden: Tensor | None = None

    def onwards(self, hidden: Tensor) -> Tensor:
        """What the hidden state adds to the gates."""
        return _linear(hidden, self.w_hidden, self.b_hidden)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = x @ weight.T
    if bias is None:
        return product
    return product + bias


Cell = Callable[[Tensor, States, _Weights], States]  # one time step: its gates from the inputs, the states before it


def _lstm(gates: Tensor, states: States, weights: _Weights) -> States:
    hidden, cell = states
    gates = gates + weights.onwards(hidden)
    i, f, g, o = gates.chunk(4, -1)
    kept = f.sigmoid() * cell
    added = i.sigmoid() * g.tanh()
    cell = kept + added
    hidden = o.sigmoid() * cell.tanh()
    return hidden, cell


def _gru(gates: Tensor, states: States, weights: _Weights) -> States:
    (hidden,) = states
    r, z, n = gates.chunk(3, -1)
    onwards = weights.onwards(hidden)
    hr, hz, hn = onwards.chunk(3, -1)
    reset = (r + hr).sigmoid()
    update = (z + hz).sigmoid()
    new = (n + reset * hn).tanh()
    added = (1 - update) * new
    hidden = added + update * hidden
    return (hidden,)


def _tanh(gates: Tensor, states: States, weights: _Weights) -> States:
    gates = gates + weights.onwards(states[0])
    return (gates.tanh(),)


def _relu(gates: Tensor, states: States, weights: _Weights) -> States:
    gates = gates + weights.onwards(states[0])
    return (gates.relu(),)


def _recurrence(
    cell: Cell,
    inputs: Tensor,
    initial: Any,
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
    if isinstance(initial, Tensor):
        initial = (initial,)
    sequence = inputs.transpose(0, 1) if batch_first else inputs
    count = 4 if has_biases else 2
    directions = 2 if bidirectional else 1
    last: list[States] = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            k = len(last)
            first = k * count
            parameters = flat[first : first + count]
            weights = _Weights(*parameters)
            states = tuple(state[k] for state in initial)
            backwards = direction == 1
            hidden, states = _over_time(cell, sequence, states, weights, backwards)
            outputs.append(hidden)
            last.append(states)
        sequence = torch.cat(outputs, -1)
        is_last = layer == layers - 1
        if dropout and training and not is_last:
            sequence = torch.nn.functional.dropout(sequence, dropout)
    if batch_first:
        sequence = sequence.transpose(0, 1)
    by_kind = zip(*last, strict=True)
    last_states = map(torch.stack, by_kind)
    return sequence, *last_states


def drops(
    inputs: Tensor,
    initial: Any,
    flat: Any,
    has_biases: Any,
    layers: int,
    dropout: float,
    training: bool,
    *others: Any,
) -> bool:
    """Whether a call of torch's recurrent function drops units between its layers, in a form that has a rule here."""
    is_packed = not isinstance(has_biases, bool)
    return training and dropout > 0 and layers > 1 and not is_packed


def _over_time(
    cell: Cell,
    sequence: Tensor,
    states: States,
    weights: _Weights,
    backwards: bool,
) -> tuple[Tensor, States]:
    """The hidden states [time, ...] of one layer in one direction, and its last states."""
    gates = _linear(sequence, weights.w_in, weights.b_in)  # of all time steps at once
    times = list(range(len(sequence)))
    if backwards:
        times.reverse()
    hidden = []
    for t in times:
        states = cell(gates[t], states, weights)
        hidden.append(states[0])
    if backwards:
        hidden.reverse()
    return torch.stack(hidden), states


RULES: Rules = {
    torch._VF.lstm: partial(_recurrence, _lstm),
    torch._VF.gru: partial(_recurrence, _gru),
    torch._VF.rnn_tanh: partial(_recurrence, _tanh),
    torch._VF.rnn_relu: partial(_recurrence, _relu),
}

"""Clients that do not answer in time rest: each costs a timeout now and then instead of one every round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import INFO

import torch
from torch import Tensor

from .asking import Heard
from .logs import log

LONGEST = 64  # rounds
_KEPT = "flower.resting"  # node, silent rounds, the round in which it is asked again
_NUMBERS = 1 << 64  # of nodes


def signed(node: int) -> int:
    """A node's id as tensors hold it."""
    return node if node < _NUMBERS // 2 else node - _NUMBERS


def unsigned(number: int) -> int:
    return number % _NUMBERS


@dataclass
class Resting:
    """Nodes that were silent `after` rounds in a row rest for one round, then for 2, 4, ... if they stay silent.

    One that answers whatever it is asked in a round starts afresh. A node that registers anew is another node.
    """

    after: int = 1  # 0: nobody rests
    silent_rounds: dict[int, int] = field(default_factory=dict)  # node -> how many in a row
    back_in: dict[int, int] = field(default_factory=dict)  # node -> the round in which it is asked again

    def at(self, index: int) -> Mapping[int, int]:
        """Nodes that rest in a round, and the round in which each is asked again."""
        self.back_in = {node: back for node, back in self.back_in.items() if back > index}
        return self.back_in

    def notes(self) -> dict[str, Tensor]:
        """Who was silent and who rests, for a run's checkpoint."""
        rows = []
        for node, rounds in self.silent_rounds.items():
            rows.append((signed(node), rounds, self.back_in.get(node, 0)))
        return {_KEPT: torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)}

    def recall(self, notes: Mapping[str, Tensor]) -> None:
        """Go on from what an earlier process noted: nodes keep their ids as long as they are registered."""
        if _KEPT not in notes:
            return
        for number, rounds, back in notes[_KEPT].tolist():
            node = unsigned(number)
            self.silent_rounds[node] = rounds
            self.back_in[node] = back

    def end_round(self, index: int, heard: Heard) -> None:
        """Take down and say who was silent in round `index`."""
        for node in heard.answered - heard.silent:
            self.silent_rounds.pop(node, None)
        for node in heard.silent:
            in_a_row = self.silent_rounds.get(node, 0) + 1
            self.silent_rounds[node] = in_a_row
            if self.after and in_a_row >= self.after:
                rounds = min(2 ** (in_a_row - self.after), LONGEST)
                self.back_in[node] = index + 1 + rounds
                text = "round %s: node %s did not answer in time and rests for the next %s"
                log(INFO, text, index + 1, node, "round" if rounds == 1 else f"{rounds} rounds")
        heard.answered.clear()
        heard.silent.clear()

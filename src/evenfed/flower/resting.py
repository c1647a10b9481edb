"""Clients that do not answer in time rest: each costs a timeout now and then instead of one every round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import INFO

from .asking import Heard
from .logs import log

LONGEST = 64  # rounds


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

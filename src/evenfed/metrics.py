"""What clients are judged by: accuracy, loss or a metric of your own, and which end of it is better."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .core.decimals import rounded
from .core.errors import InputError
from .core.server import Record
from .core.sparse import StoredNumbers
from .fairness import LOWER_IS_BETTER, Fairness, Vector

_ACCURACY = "accuracy"
_LOSS = "loss"
# Words in the name of a figure of which less is better, or their ends; and words that say otherwise beside them
_ERRORS = ("loss", "losses", "error", "errors", "mae", "mse")
_NOT_ERRORS = {"accuracy", "aware", "complement", "free", "less", "minus", "no", "within", "without"}


@dataclass(frozen=True)
class Metric:
    """A figure per client. Give one as `score=` where it is not a share of right answers.

    `function(outputs, targets)`: one number per example or, with `whole_client`, one number for all test examples of a
    client (AUC, F1, R2). A metric of a whole client gets arrays, as scikit-learn's functions take them; NaN or a
    ValueError (a client with one class only has no AUC) means that the client has no value.

    >>> Metric(max, name="peak", whole_client=True).higher_is_better
    True
    """

    function: Callable[[Any, Any], Any] | None = None
    higher_is_better: bool = True
    name: str = ""
    whole_client: bool = False

    def __post_init__(self) -> None:
        function = self.function
        if function is not None and not callable(function):
            raise InputError(f"Metric(function={function!r}): give a function of (outputs, targets)")
        if not isinstance(self.higher_is_better, bool) or not isinstance(self.whole_client, bool):
            raise InputError("Metric: higher_is_better and whole_client are True or False")
        if not self.name:
            name = getattr(function, "__name__", "score")
            object.__setattr__(self, "name", name)
        if function is not None and self.name == _LOSS:
            raise InputError("Metric(name='loss'): the loss is always recorded under this name; give another")

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> "Metric | None":
        """As `describe` wrote it: without its function."""
        if data is None:
            return None
        return cls(name=data["name"], higher_is_better=data["higher_is_better"])

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {"name": self.name, "higher_is_better": self.higher_is_better}

    @property
    def recorded(self) -> dict[str, Any] | None:
        """What a run's header says; nothing of accuracy, which is the rule."""
        return None if self == ACCURACY else self.describe()

    @property
    def is_loss(self) -> bool:
        return self.name == _LOSS

    def of(self, record: Record) -> Vector | None:
        """[n] the clients' figures in a round; None if it was not evaluated."""
        return record.test_losses if self.is_loss else record.accuracy

    def kept(self, record: Record) -> Vector | StoredNumbers | None:
        """The same in the form the record keeps it in."""
        return record.kept("test_losses" if self.is_loss else "accuracy")

    def known(self, record: Record) -> Vector:
        """The figures of the clients that have one in a round."""
        return record.known("test_losses" if self.is_loss else "accuracy")

    def fairness(self, figures: Vector) -> Fairness:
        """Of figures [n]; the worst are those at the end that is not better."""
        return Fairness.of(figures, self.higher_is_better)

    @property
    def sign(self) -> int:
        """+1 if more is better, -1 if less is."""
        return 1 if self.higher_is_better else -1

    def direction(self, figure: str) -> int:
        """+1 if more is better of a figure over clients, -1 if less is, as always of `std`.

        >>> ACCURACY.direction("worst10"), ACCURACY.direction("std"), LOSS.direction("mean")
        (1, -1, -1)
        """
        return -1 if figure in LOWER_IS_BETTER else self.sign

    @property
    def is_share(self) -> bool:
        """Whether it is shown in percent, and differences in points."""
        return self.name == _ACCURACY

    @property
    def unit(self) -> float:
        """What a figure is multiplied by to be shown."""
        return 100.0 if self.is_share else 1.0

    @property
    def digits(self) -> int:
        """After the decimal point, in a table."""
        return 1 if self.is_share else 3

    def text(self, value: float, signed: bool = False) -> str:
        """A figure or a difference, in the unit it is shown in.

        >>> ACCURACY.text(65.43), LOSS.text(0.25, signed=True), LOSS.text(14135.4), LOSS.text(3e18)
        ('65.4', '+0.250', '14135', '3.000e+18')
        """
        return rounded(value, self.digits, signed)

    @property
    def title(self) -> str:
        """With its unit."""
        return f"{self.name} in %" if self.is_share else self.name

    @property
    def axis(self) -> str:
        """With its unit, for a figure's axis."""
        return f"{self.name}, %" if self.is_share else self.name

    @property
    def change(self) -> str:
        """A client's change, in words."""
        return "change in points" if self.is_share else f"change of {self.name}"

    @property
    def difference(self) -> str:
        """What a difference is measured in."""
        return f"points of {self.name}" if self.is_share else f"difference in {self.name}"


def names_error(name: str) -> bool:
    """Whether the name of a figure says that less of it is better.

    >>> names_error("eval_loss"), names_error("RMSE"), names_error("crossEntropyLoss"), names_error("mae2")
    (True, True, True, True)
    >>> names_error("top1"), names_error("within_error"), names_error("glossary_hit")
    (False, False, False)
    """
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    words = {part.lower() for part in parts}
    return any(word.endswith(_ERRORS) for word in words) and words.isdisjoint(_NOT_ERRORS)


ACCURACY = Metric(name=_ACCURACY)
LOSS = Metric(name=_LOSS, higher_is_better=False)

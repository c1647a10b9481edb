"""What a model is trained on and judged by, as an experiment's file names it: `loss` and `score` of [train]."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import losses, models, scores
from ..core.errors import InputError, unknown
from ..data import Federation

KEYS = ("loss", "score")
_KNOWN: dict[str, Mapping[str, Any]] = {"loss": losses.NAMED, "score": scores.NAMED}
_ONE_OUTPUT = ("binary", "mse", "mae")  # losses of one number per target, not of a score per class


@dataclass(frozen=True)
class LossAndScore:
    """The names of a loss and a score. None: what suits classes, cross entropy and accuracy."""

    loss: str | None = None
    score: str | None = None

    def __post_init__(self) -> None:
        for key in KEYS:
            name = getattr(self, key)
            if name is None:
                continue
            if not isinstance(name, str):
                raise InputError(f"train.{key}={name!r}: give a name, e.g. 'binary', or module.function of your own")
            if "." not in name and name not in _KNOWN[key]:
                raise unknown(f"train.{key}", name, [*_KNOWN[key], "module.function"])

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "LossAndScore":
        """From a table that may have other keys too."""
        return cls(table.get("loss"), table.get("score"))

    def describe(self) -> dict[str, str]:
        """What is named; nothing where nothing is."""
        named = {}
        for key in KEYS:
            name = getattr(self, key)
            if name is not None:
                named[key] = name
        return named

    @property
    def functions(self) -> dict[str, Any]:
        """The functions by key, as `Problem.on` and Flower's client app take them; one's own are imported."""
        functions: dict[str, Any] = {}
        for key, name in self.describe().items():
            known = _KNOWN[key].get(name)
            functions[key] = known or models.imported(name, key, "module.function")
        return functions

    @property
    def is_own(self) -> bool:
        """Whether a function of one's own is named, which is looked for in the experiment's folders."""
        return any("." in name for name in self.describe().values())

    def outputs(self, federation: Federation) -> int:
        """How many numbers a bundled model gives per example, or per position of a sequence."""
        if self.loss in _ONE_OUTPUT:
            return federation.train.targets[:1].numel()
        return federation.classes

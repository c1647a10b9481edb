"""What a user chooses by name: a class and its options, or a function of outputs and targets."""

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from .errors import InputError, shown, unknown
from .scalars import unwrapped

Kind = TypeVar("Kind", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

_GIVEN_APART = ("params", "lr")  # an optimiser of torch takes them, but not as options


def kind_and_options(
    what: str,
    choice: Any,
    kinds: Mapping[str, Kind],
    example: str,
    otherwise: str | None = None,
    lr: str | None = None,
) -> tuple[Kind, dict[str, Any]]:
    """The class that a choice names, and the options it gives: a name, or a table with a name and options.

    `kinds` are known by names in lower case. `example` is a table; `otherwise` is what else may be given. `lr` is the
    setting that holds the learning rate, which is no option.

    >>> from fractions import Fraction
    >>> kind_and_options("number", {"name": "Fraction", "numerator": 2}, {"fraction": Fraction}, example="")
    (<class 'fractions.Fraction'>, {'numerator': 2})
    """
    if isinstance(choice, str):
        choice = {"name": choice}
    if not isinstance(choice, Mapping) or "name" not in choice:
        names = ", ".join(kinds)
        ways = f"a name ({names}), or a table such as {example}"
        if otherwise is not None:
            ways = f"a name ({names}), a table such as {example}, or {otherwise}"
        raise InputError(f"{what}={shown(choice)}: give {ways}")
    options = dict(choice)
    name = str(options.pop("name"))
    kind = kinds.get(name.lower())
    if kind is None:
        raise unknown(what, name, kinds)
    if lr is not None and "lr" in options:
        value = options["lr"]
        raise InputError(f"{what} {name}: the learning rate is an option of its own; give {lr}={value!r}")
    check_options(f"{what} {name}", kind, options)
    return kind, options


def check_options(what: str, kind: type, options: Iterable[str]) -> None:
    """Refuse an option that the class does not take, and name the nearest that it does."""
    allowed = _options_of(kind)
    for option in options:
        if option not in allowed:
            raise unknown(f"option of {what}", option, allowed)


@functools.cache
def _options_of(kind: type) -> list[str]:
    """What the class takes by keyword; cached, for it is asked in every round."""
    parameters = inspect.signature(kind).parameters
    return [name for name in parameters if name not in _GIVEN_APART]


def position_of(what: str, choice: Any, names: Sequence[str]) -> int:
    """Of the one with this name, or the position itself.

    >>> position_of("client", "b", ["a", "b"]), position_of("client", 0, ["a", "b"])
    (1, 0)
    """
    ways = f"give a name, or a position from 0 to {len(names) - 1}"
    if isinstance(choice, str):
        if choice not in names:
            raise unknown(what, choice, names, hint=f"{ways}.")
        return names.index(choice)
    position = unwrapped(choice)
    if type(position) is not int or not 0 <= position < len(names):
        raise InputError(f"{what}={shown(choice)}: there are {len(names)}; {ways}")
    return position


def function_of(
    what: str,
    choice: Function | str | None,
    named: Mapping[str, Function],
) -> Function | None:
    """A function of (outputs, targets): the one of this name, or the user's own; None stays None.

    >>> function_of("loss", "absolute", {"absolute": abs})
    <built-in function abs>
    """
    if isinstance(choice, str):
        name = choice.lower()
        if name not in named:
            raise unknown(what, choice, named)
        return named[name]
    if isinstance(choice, type):
        kind = choice.__name__
        raise InputError(
            f"{what}={kind} is a class; give an instance that returns one value per example, "
            f"{kind}(reduction='none'), or one of the names {', '.join(named)}"
        )
    if choice is not None and not callable(choice):
        names = ", ".join(named)
        raise InputError(f"{what}={shown(choice)}: give a function of (outputs, targets), or one of {names}")
    return choice


_OTHER_NAMES = {  # what others call an option
    "learning_rate": "lr",
    "step_size": "lr",
    "eta": "lr",
    "epochs": "local_epochs",
    "epoch": "local_epochs",
    "steps": "local_steps",
    "fraction_fit": "participation",
    "max_grad_norm": "clip",
    "mu": "prox",
    "proximal_mu": "prox",
    "server_learning_rate": "server_lr",
}
_OF_OPTIMIZER = {  # options of the clients' optimiser: one that has them
    "momentum": "sgd",
    "weight_decay": "sgd",
    "nesterov": "sgd",
    "dampening": "sgd",
    "betas": "adam",
    "amsgrad": "adam",
}


def known_keywords(**other_names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: an unknown keyword is refused with the nearest name, or with the name that `other_names` gives.

    >>> known_keywords(epochs="rounds")(lambda rounds: rounds)(epochs=3)
    Traceback (most recent call last):
    evenfed.core.errors.InputError: unknown option 'epochs'; did you mean 'rounds'? Allowed: rounds
    """

    def checking(function: Callable[P, R]) -> Callable[P, R]:
        allowed = [name for name in inspect.signature(function).parameters if name != "self"]

        @functools.wraps(function)
        def checked(*arguments: P.args, **options: P.kwargs) -> R:
            refuse_unknown("option", options, allowed, other_names)
            return function(*arguments, **options)

        return checked

    return checking


def refuse_unknown(
    kind: str,
    options: Mapping[str, Any],
    allowed: Sequence[str],
    other_names: Mapping[str, str] = _OTHER_NAMES,
) -> None:
    """Refuse an option that is not allowed. `other_names`: what other libraries call options, and the names here."""
    for name, value in options.items():
        if name not in allowed:
            raise unknown(kind, name, allowed, _hint(name, value, allowed, other_names))


def _hint(
    name: str,
    value: Any,
    allowed: Sequence[str],
    other_names: Mapping[str, str],
) -> str | None:
    """What to give instead of an option that other libraries have; None: none that is known has it."""
    if name in other_names and other_names[name] in allowed:
        return f"did you mean '{other_names[name]}'?"
    if name in _OF_OPTIMIZER and "optimizer" in allowed:
        kind = _OF_OPTIMIZER[name]
        in_toml = f'{{name = "{kind}", {name} = {json.dumps(value, default=str)}}}'
        in_python = {"name": kind, name: value}
        return f"give it to the optimizer: optimizer = {in_toml}, in Python optimizer={in_python}."
    return None


def extended(choice: Any, option: str, value: Any) -> dict[str, Any]:
    """A choice by name, or by a table, with one more of its options set.

    >>> extended("sgd", "momentum", 0.9)
    {'name': 'sgd', 'momentum': 0.9}
    """
    table: dict[str, Any] = {}
    if isinstance(choice, Mapping):
        table.update(choice)
    elif choice is not None:
        table["name"] = choice
    table[option] = value
    return table

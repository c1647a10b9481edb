"""The command `evenfed algorithms`: what each algorithm minimises, and its hyper-parameters."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from .console import Page, console

if TYPE_CHECKING:
    from ..core.algorithm import Algorithm

_BOUNDS = {"above": "above", "least": "at least", "most": "at most"}


def algorithms(
    name: Annotated[str | None, typer.Argument(help="Show this algorithm in full.")] = None,
) -> None:
    """List the algorithms: what each minimises, its hyper-parameters and their dangers."""
    from ..algorithms import find, names, plain

    page = console()
    if name is not None:
        if plain(name) == "fedprox":
            page.print(
                "fedprox\\[mu=0.1] is fedavg\\[prox=0.1]: FedAvg whose clients are pulled to the incoming model.\n"
            )
            name = "fedavg"
        _show(page, find(name))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("name", "what it minimises", "hyper-parameters"):
        table.add_column(title)
    for each in names():
        algorithm = find(each)
        first_line = _about(algorithm)[0]
        summary = first_line.rstrip(".")
        fields = dataclasses.fields(algorithm)
        defaults = [f"{field.name}={field.default!r}" for field in fields]
        hyper_parameters = ", ".join(defaults)
        table.add_row(
            f"[bold]{each}[/]",
            escape(summary),
            escape(hyper_parameters),
        )
    page.print(table)
    page.print("\n[dim]evenfed algorithms NAME: formula, FedAvg values and danger bounds[/]")


def _about(algorithm: "type[Algorithm]") -> list[str]:
    docstring = inspect.getdoc(algorithm) or ""
    return docstring.splitlines()


def _show(page: Page, algorithm: "type[Algorithm]") -> None:
    from ..settings import VARIANT

    about = "\n".join(_about(algorithm))
    reference = algorithm.reference or "none given"
    common = ", ".join(VARIANT)
    page.print(f"[bold]{algorithm.name}[/]  ({algorithm.__name__})\n")
    page.put(about)
    page.put(f"\nReference: {reference}")
    page.put(
        f"With every algorithm: {common}. smooth=0.25 damps weights that oscillate; average=0.9 deploys a running "
        "average of the rounds' models."
    )
    for field in dataclasses.fields(algorithm):
        limits = _limits(field.metadata)
        meaning = escape(field.metadata.get("help", ""))
        page.print(f"\n[bold]{field.name}[/] = {field.default!r}  {meaning}")
        for word, value in limits.items():
            page.put(f"    {word}: {value}")


def _limits(metadata: Mapping[str, Any]) -> dict[str, str]:
    """What a hyper-parameter allows, where it gives FedAvg, and where it is dangerous."""
    limits = {}
    bounds = []
    for key, words in _BOUNDS.items():
        bound = metadata.get(key)
        if bound is not None:
            bounds.append(f"{words} {bound}")
    reason = metadata.get("reason")
    grid = metadata.get("grid")
    fedavg = metadata.get("fedavg")
    danger = metadata.get("danger")
    if bounds:
        allowed = " and ".join(bounds)
        limits["allowed"] = f"{allowed}: {reason}"
    if fedavg is not None:
        limits["FedAvg at"] = str(fedavg)
    if danger:
        limits["danger"] = danger
    if grid:
        limits["tune tries"] = ", ".join(map(str, grid))
    return limits

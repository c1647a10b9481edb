"""What a search found: a table, the trade-off of mean against worst 10 % as a picture, the chosen values as TOML."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from ..comparison.tune import Candidate, Tuned, front, tables
from ..core.errors import InputError
from . import pictures


def render(tuned: Tuned) -> Table:
    """The chosen values of each entry, and what they gave."""
    judged = "the validation split" if tuned.search.select_on == "validation" else "the TEST data (as the paper did)"
    title = f"chosen by {tuned.search.metric} on {judged}, average of the last rounds"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for name in ("entry", "values", "mean", "worst10", "candidates"):
        table.add_column(name, justify="left" if name in ("entry", "values") else "right")
    for label, best in tuned.chosen.items():
        count = sum(c.label == label for c in tuned.candidates)
        figures = (f"{100 * best.figures[k]:.1f}" for k in ("mean", "worst10"))
        table.add_row(escape(label), _values(best), *figures, str(count))
    return table


def describe(tuned: Tuned) -> dict[str, Any]:
    """All candidates and the chosen ones, as JSON."""

    def plain(candidate: Candidate) -> dict[str, Any]:
        return {"label": candidate.label, "values": dict(candidate.values), "figures": dict(candidate.figures)}

    return {
        "metric": tuned.search.metric,
        "selected_on": tuned.search.select_on,
        "chosen": {label: plain(c) for label, c in tuned.chosen.items()},
        "candidates": [plain(c) for c in tuned.candidates],
    }


def write_toml(tuned: Tuned, path: Path) -> None:
    """The experiment with the chosen values: what `evenfed compare` takes next."""
    judged = "a validation split" if tuned.search.select_on == "validation" else "TEST DATA: not comparable with others"
    told = [f"Values chosen by {tuned.search.metric} on {judged}."]
    save_toml(path, told, tables(tuned.experiment, tuned.search.select_on))


def save_toml(path: Path, told: Sequence[str], experiment: Mapping[str, Any]) -> None:
    """An experiment's tables as a file that says how to run it and where its values come from."""
    try:
        import tomli_w
    except ImportError:
        raise InputError("writing TOML needs tomli-w; install it with: pip install 'evenfed[tune]'") from None
    lines = [f"evenfed compare {path}", *(line for text in told for line in textwrap.wrap(text, 110))]
    text = "".join(f"# {line}\n" for line in lines) + tomli_w.dumps(experiment)
    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); choose another --out") from None


def draw(tuned: Tuned, folder: Path) -> list[Path]:
    """Every candidate, the front that none beats in both, and the chosen ones; nothing without altair."""
    alt = pictures.altair()
    if alt is None:
        return []
    data = [
        {
            "entry": c.label,
            "mean": 100 * c.figures["mean"],
            "worst10": 100 * c.figures["worst10"],
            "values": _values(c),
            "kind": "chosen" if tuned.chosen.get(c.label) is c else "candidate",
        }
        for c in tuned.candidates
    ]
    best = [{"mean": 100 * c.figures["mean"], "worst10": 100 * c.figures["worst10"]} for c in front(tuned.candidates)]
    x = alt.X("mean:Q", title="mean accuracy, %", scale=alt.Scale(zero=False))
    y = alt.Y("worst10:Q", title="worst 10 %, %", scale=alt.Scale(zero=False))
    points = (
        alt.Chart(alt.Data(values=data), width=560, height=420)
        .mark_point(filled=True)
        .encode(
            x=x,
            y=y,
            color=alt.Color("entry:N", title=None),
            shape=alt.Shape("kind:N", title=None),
            size=alt.condition("datum.kind == 'chosen'", alt.value(160), alt.value(45)),
        )
    )
    line = (
        alt.Chart(alt.Data(values=best)).mark_line(color="#888888", strokeDash=[4, 3]).encode(x=x, y=y, order="mean:Q")
    )
    chart = (line + points).properties(title="Candidates: mean against worst 10 %; dashed: none is better in both")
    return pictures.save(chart, folder, "trade-off")


def _values(candidate: Candidate) -> str:
    return ", ".join(f"{k}={v:g}" for k, v in candidate.values.items())

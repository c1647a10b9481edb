"""What a search tried: mean against worst 10 % of every candidate."""

from pathlib import Path

from ...comparison.study import Candidate
from ...comparison.tune import Tuned, front
from ...metrics import Metric
from ..tuning import values_of
from .drawing import GREY, Spec, category, quantity, save


def draw(tuned: Tuned, folder: Path) -> list[Path]:
    """The figure as SVG and PNG in `folder`; an empty list where `evenfed[report]` is not installed."""
    return save(figure(tuned), folder, "trade-off")


def figure(tuned: Tuned) -> Spec:
    """Every candidate, those chosen, and the front: candidates that no other beats in both."""
    judged_by = tuned.search.judged_by
    candidates = []
    for candidate in tuned.candidates:
        is_chosen = tuned.chosen.get(candidate.label) is candidate
        candidates.append(
            {
                "entry": candidate.label,
                "values": values_of(candidate),
                "kind": "chosen" if is_chosen else "candidate",
                **_position(candidate, judged_by),
            }
        )
    unbeaten = [_position(candidate, judged_by) for candidate in front(tuned.candidates, judged_by.sign)]
    position = {
        "x": quantity("mean", title=f"mean {judged_by.axis}", scale={"zero": False}),
        "y": quantity("worst10", title=f"worst 10 %{', %' if judged_by.is_share else ''}", scale={"zero": False}),
    }
    line = {
        "data": {"values": unbeaten},
        "mark": {"type": "line", "color": GREY, "strokeDash": [4, 3]},
        "encoding": {**position, "order": quantity("mean")},
    }
    points = {
        "data": {"values": candidates},
        "mark": {"type": "point", "filled": True},
        "encoding": {
            **position,
            "color": category("entry", title=None),
            "shape": category("kind", title=None),
            "size": {"condition": {"test": "datum.kind == 'chosen'", "value": 160}, "value": 45},
        },
    }
    return {
        "title": "Candidates: mean against worst 10 %; dashed: none is better in both",
        "width": 560,
        "height": 420,
        "layer": [line, points],
    }


def _position(candidate: Candidate, judged_by: Metric) -> dict[str, float]:
    mean = candidate.figures["mean"]
    worst10 = candidate.figures["worst10"]
    unit = judged_by.unit
    return {"mean": unit * mean, "worst10": unit * worst10}

"""Whether expected accuracies fit the measured ones, in words."""

from collections.abc import Sequence

from ..comparison.analysis.expected import MOST_UNEXPLAINED
from ..comparison.analysis.findings import Findings


def fit_note(findings: Findings) -> str:
    """What expected figures are and how well they fit; empty where there are none."""
    classes = []
    noise = []
    misfits = []
    for label, row in findings.rows.items():
        if row.fit is None:
            continue
        if not row.fit.is_good:
            misfits.append(label)
            continue
        classes.append(_percent(row.fit.classes))
        noise.append(_percent(row.fit.noise))
    if not classes and not misfits:
        return ""
    sentences = ["Expected: each client's class shares times the model's recalls, without the noise of its test set."]
    if noise and min(noise) >= 100:
        sentences.append("The noise of their small test sets alone explains all of the spread between clients.")
    elif classes:
        sentences.append(
            f"Class shares explain {_range(classes)} % of the spread between clients (weighted R2), noise "
            f"{_range(noise)} %."
        )
    if misfits:
        sentences.append(
            f"WARNING: expected figures do not fit {', '.join(misfits)}: class shares and noise leave more than "
            f"{100 * MOST_UNEXPLAINED:.0f} % of the spread unexplained (clients, or their own models, differ in more "
            "than labels). Nothing is judged by them there."
        )
    return " ".join(sentences)


def _percent(share: float) -> int:
    """Of a whole: an estimate below nothing is nothing, one of more than everything is everything."""
    percent = round(100 * share)
    if percent < 0:
        return 0
    return min(100, percent)


def _range(percents: Sequence[int]) -> str:
    """From the least to the most."""
    least = min(percents)
    most = max(percents)
    return str(least) if least == most else f"{least} to {most}"

"""Whether expected accuracies fit the measured ones, in words."""

from collections.abc import Sequence

from ..comparison.analysis.expected import MOST_UNEXPLAINED
from ..comparison.analysis.findings import Findings

_EXPECTED = "Expected: each client's class shares times the model's recalls, without the noise of its test set."


def short_fit_notes(findings: Findings) -> Sequence[str]:
    """What expected figures are, and which entries they do not fit; empty where there are none."""
    if not any(row.fit for row in findings.rows.values()):
        return ()
    return [_EXPECTED, *_warning(findings)]


def fit_notes(findings: Findings) -> Sequence[str]:
    """The same, and how well they fit the others."""
    fits = [row.fit for row in findings.rows.values() if row.fit is not None]
    if not fits:
        return ()
    good = [fit for fit in fits if fit.is_good]
    classes = [_percent(fit.classes) for fit in good]
    noise = [_percent(fit.noise) for fit in good]
    sentences = [_EXPECTED]
    if noise and min(noise) >= 100:
        sentences.append("The noise of their small test sets alone explains all of the spread between clients.")
    elif classes:
        sentences.append(
            f"Class shares explain {_range(classes)} % of the spread between clients (weighted R2), noise "
            f"{_range(noise)} %."
        )
    return [*sentences, *_warning(findings)]


def _warning(findings: Findings) -> list[str]:
    """Which entries expected figures do not fit."""
    misfits = [label for label, row in findings.rows.items() if row.fit is not None and not row.fit.is_good]
    if not misfits:
        return []
    return [
        f"WARNING: expected figures do not fit {', '.join(misfits)}: class shares and noise leave more than "
        f"{100 * MOST_UNEXPLAINED:.0f} % of the spread unexplained. They are not used there."
    ]


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

"""Figures and differences in plain words."""

import re
from collections.abc import Sequence

from ...comparison.analysis.intervals import Difference
from ...metrics import Metric

_FEW = 3  # names that a sentence lists
_NOTHING = 1e-9
_MARKS = ("\ue000", "\ue001")  # around the label of an entry in a text: private characters, which no page shows
_MARKED = re.compile("{}(.*?){}".format(*_MARKS), re.DOTALL)


def level(metric: Metric, value: float) -> str:
    """A figure with its unit.

    >>> level(Metric(name="accuracy"), 27.48), level(Metric(name="loss", higher_is_better=False), 0.31)
    ('27.5 % accuracy', 'a loss of 0.310')
    """
    number = metric.text(value)
    if metric.is_share:
        return f"{number} % {metric.name}"
    return f"a {metric.name} of {number}"


def shown(metric: Metric, value: float) -> str:
    """A figure without its name.

    >>> shown(Metric(name="accuracy"), 27.48)
    '27.5 %'
    """
    number = metric.text(value)
    return f"{number} %" if metric.is_share else number


def amount(metric: Metric, points: float) -> str:
    """The size of a difference.

    >>> amount(Metric(name="accuracy"), -1.04)
    '1.0 points'
    """
    number = metric.text(abs(points))
    return f"{number} points" if metric.is_share else number


def signed(metric: Metric, points: float) -> str:
    """A difference with its sign; a true minus, as in the page's table."""
    number = metric.text(points, signed=True)
    return number.replace("-", "\N{MINUS SIGN}")


def change(metric: Metric, difference: Difference) -> str:
    """A difference and its interval.

    >>> gap = Difference(2.44, -0.7, 5.6, "worst10", seeds=3)
    >>> print(change(Metric(name="accuracy"), gap))
    +2.4 points, likely between −0.7 and +5.6
    """
    if is_nothing(difference):
        return "the same"
    unit = " points" if metric.is_share else ""
    text = f"{signed(metric, difference.points)}{unit}"
    if difference.is_judged:
        low = signed(metric, difference.low)
        high = signed(metric, difference.high)
        text += f", likely between {low} and {high}"
    return text


def is_nothing(difference: Difference) -> bool:
    """Whether it is zero in every run."""
    points = abs(difference.points)
    high = abs(difference.high)
    is_large = points > _NOTHING or high > _NOTHING
    return not is_large


def marked(label: str) -> str:
    """The label of an entry, to stand in a text: another word may be spelt the same."""
    before, after = _MARKS
    return f"{before}{label}{after}"


def plain(text: str) -> str:
    """A text without marks.

    >>> plain(f"{marked('worse')} does worse")
    'worse does worse'
    """
    return _MARKED.sub(r"\1", text)


def words_and_labels(text: str) -> list[str]:
    """Words and labels in turn; the first and the last are words.

    >>> words_and_labels(f"{marked('worse')} does worse")
    ['', 'worse', ' does worse']
    """
    return _MARKED.split(text)


def listed(names: Sequence[str]) -> str:
    """A few names, or how many there are.

    >>> listed(["afl"]), listed(["afl", "term"]), listed(["afl", "term", "vred", "qffl", "drfa"])
    ('afl', 'afl and term', 'afl, term, vred and 2 others')
    """
    count = len(names)
    if count > _FEW + 1:
        shown = ", ".join(names[:_FEW])
        others = count - _FEW
        return f"{shown} and {others} others"
    if count == 1:
        return names[0]
    *first, last = names
    before = ", ".join(first)
    return f"{before} and {last}"

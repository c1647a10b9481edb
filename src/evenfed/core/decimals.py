"""How many digits of a number are shown: fewer after the point the larger it is."""

import math
from collections.abc import Iterable

_EXPONENT_FROM = 1e6
_SIGNIFICANT = 4


def rounded(
    number: float,
    digits: int,
    signed: bool = False,
    among: Iterable[float | None] = (),
) -> str:
    """With so many digits after the point, fewer if the largest of those it is shown `among` is large.

    A very large number has an exponent. Without digits after the point it is a count and shown in full.

    >>> rounded(3.475, 3), rounded(65.4, 1, signed=True), rounded(14135.4, 3), rounded(603.9, 3, among=[14135.4])
    ('3.475', '+65.4', '14135', '604')
    >>> rounded(3.728e18, 3), rounded(2_000_000, 0)
    ('3.728e+18', '2000000')
    """
    sign = "+" if signed else ""
    is_count = digits == 0
    is_very_large = _EXPONENT_FROM <= abs(number) < math.inf
    if is_very_large and not is_count:
        return f"{number:{sign}.{_SIGNIFICANT - 1}e}"
    together = [number, *among]
    places = _places(together, digits)
    return f"{number:{sign}.{places}f}"


def unlike(first: float, second: float) -> tuple[str, str]:
    """Two numbers in three significant digits, or in as many as tell them apart.

    >>> unlike(1e6, 2.5), unlike(0.54321, 0.54301)
    (('1e+06', '2.5'), ('0.54321', '0.54301'))
    """
    for digits in (3, 6, 17):
        texts = (f"{first:.{digits}g}", f"{second:.{digits}g}")
        if texts[0] != texts[1]:
            break
    return texts


def _places(numbers: Iterable[float | None], digits: int) -> int:
    """Digits after the point for the largest number. Up to two are for percentages, which keep them up to 999."""
    largest = 0.0
    for number in numbers:
        if number is not None and math.isfinite(number):
            largest = max(largest, abs(number))
    before_point = 1
    if largest >= 1:
        exponent = math.log10(largest)
        before_point = math.floor(exponent) + 1
    significant = digits + 3
    if digits > 2:
        significant = max(_SIGNIFICANT, digits + 1)
    room = significant - before_point
    if room < 0:
        return 0
    return min(digits, room)

"""Words of sentences that messages and reports have in common."""


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things.

    >>> counted(1, "round"), counted(3, "seed"), counted(2, "entry", "entries")
    ('1 round', '3 seeds', '2 entries')
    """
    if number == 1:
        return f"1 {one}"
    plural = many or f"{one}s"
    return f"{number} {plural}"

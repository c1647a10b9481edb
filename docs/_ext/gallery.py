"""The gallery: the order of its examples, and how its pictures look."""

ORDER = [
    "five_minutes.py",
    "what_weights_do.py",
    "who_gains.py",
    "taking_turns.py",
    "frontier.py",
    "own_algorithm.py",
    "personal_models.py",
]


def order(filename: str) -> tuple[int, str]:
    """The examples above as listed, others after them."""
    place = ORDER.index(filename) if filename in ORDER else len(ORDER)
    return place, filename


def look(gallery_conf: dict, fname: str) -> None:
    """The same plain look for every picture."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.rcdefaults()
    plt.rcParams.update(
        {
            "figure.figsize": (7.2, 3.8),
            "figure.dpi": 100,
            "savefig.bbox": "tight",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#e4e4e4",
            "font.size": 10,
            "legend.frameon": False,
        }
    )

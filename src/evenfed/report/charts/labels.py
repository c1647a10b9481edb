"""Labels next to points: none on another label, on a point or on a line to a label."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

LETTER = 6.4  # pixels, at the size of labels; a reader's fonts may be a little wider
LINE = 14.0
_NEAR = 9.0  # from a point's centre to a label beside it
_DISTANCES = (0, 14, 24, 36, 48, 62, 78, 98, 120, 150, 190, 240)
_SIDES = (1, 0, -1)  # right of the point, above or below it, left of it
_HEIGHTS = (0, -1, 1, -0.5, 0.5, -1.5, 1.5)  # of the distance, y downwards
_CROSSES_POINT = 60.0  # what a line over another point, another line or an error bar costs, in pixels of distance
_CROSSES_LINE = 40.0
_COVERS_BAR = 20.0
_GRID = 10.0  # pixels between places that are tried in a crowded picture
_BY_FAR = 5.0  # pixels by which a label's own point is nearer than any other
_NEARER_OTHER = 120.0  # a label that seems to belong to another point


@dataclass(frozen=True)
class Box:
    """In pixels, y downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Box") -> bool:
        beside = self.right <= other.left or other.right <= self.left
        apart = self.bottom <= other.top or other.bottom <= self.top
        return not beside and not apart

    def is_inside(self, area: "Box") -> bool:
        across = area.left <= self.left and self.right <= area.right
        down = area.top <= self.top and self.bottom <= area.bottom
        return across and down

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2

    def distance(self, x: float, y: float) -> float:
        """From a place to the nearest edge."""
        across = max(self.left - x, 0.0, x - self.right)
        down = max(self.top - y, 0.0, y - self.bottom)
        square = across**2 + down**2
        return float(square**0.5)


@dataclass(frozen=True)
class Line:
    """From one place to another."""

    x: float
    y: float
    x2: float
    y2: float

    def meets(self, box: Box) -> bool:
        """Whether a part of it lies in the box: Liang and Barsky's clipping."""
        start = 0.0
        end = 1.0
        dx = self.x2 - self.x
        dy = self.y2 - self.y
        sides = (
            (-dx, self.x - box.left),
            (dx, box.right - self.x),
            (-dy, self.y - box.top),
            (dy, box.bottom - self.y),
        )
        for slope, room in sides:
            if slope == 0:
                if room <= 0:
                    return False
                continue
            crossing = room / slope
            if slope < 0:
                start = max(start, crossing)
            else:
                end = min(end, crossing)
        return start < end

    def crosses(self, other: "Line") -> bool:
        def is_between(one: Line, two: Line) -> bool:
            """Whether the ends of `two` lie on either side of `one`."""
            first = _turn(one, two.x, two.y)
            second = _turn(one, two.x2, two.y2)
            return first * second < 0

        return is_between(self, other) and is_between(other, self)


def _turn(line: Line, x: float, y: float) -> float:
    """Above zero on one side of the line, below it on the other."""
    dx = line.x2 - line.x
    dy = line.y2 - line.y
    return dx * (y - line.y) - dy * (x - line.x)


@dataclass(frozen=True)
class Point:
    """A point to be labelled."""

    x: float
    y: float
    text: str
    bars: tuple[Line, ...] = ()  # its error bars: labels keep off them where there is room

    @property
    def box(self) -> Box:
        return self.around(6, 6)

    def around(self, across: float, down: float) -> Box:
        """So far to either side, up and down."""
        return Box(
            left=self.x - across,
            top=self.y - down,
            right=self.x + across,
            bottom=self.y + down,
        )

    @property
    def width(self) -> float:
        return LETTER * len(self.text)


@dataclass(frozen=True)
class Label:
    """The position of a point's label."""

    box: Box
    align: str = "left"
    x: float = 0.0  # where the text begins, ends or has its middle
    leader: Line | None = None  # None: it is next to its point


def place(points: Sequence[Point], area: Box, taken: Sequence[Box] = ()) -> list[Label]:
    """A label for each point, near it if there is room, else further off with a line to it."""

    def crowded_first(k: int) -> tuple[int, float]:
        near = points[k].around(80, 30)
        neighbours = sum(near.meets(other.box) for other in points)
        return -neighbours, points[k].y

    fixed = list(map(Label, taken))
    count = len(points)
    placed: dict[int, Label] = {}
    for k in sorted(range(count), key=crowded_first):
        labels = [*fixed, *placed.values()]
        placed[k] = _best(points[k], points, labels, area)
    return [placed[k] for k in range(count)]


def _best(
    point: Point,
    points: Sequence[Point],
    labels: Sequence[Label],
    area: Box,
) -> Label:
    """The nearest free place; one further off if the line to it would cross less."""
    others = [other for other in points if other is not point]
    best = None
    least = float("inf")
    for distance, label in _candidates(point):
        if distance >= least:
            break
        if not label.box.is_inside(area) or _covers(label, others, labels) or _crossed(label, labels):
            continue
        cost = distance + _cost(label, point, others, labels)
        if cost < least:
            best = label
            least = cost
    return best or _anywhere(point, others, labels, area)


def _anywhere(
    point: Point,
    others: Sequence[Point],
    labels: Sequence[Label],
    area: Box,
) -> Label:
    """In a crowded picture: the free place whose line crosses the fewest labels, and of those the nearest."""
    best = None
    least = (0, float("inf"))
    for label in _everywhere(point, area):
        if _covers(label, others, labels):
            continue
        crossed = _crossed(label, labels)
        distance = label.box.distance(point.x, point.y)
        if best is None or (crossed, distance) < least:
            best = label
            least = (crossed, distance)
    if best is None:  # more labels than there is room for
        _, best = next(_candidates(point))
    return best


def _everywhere(point: Point, area: Box) -> Iterator[Label]:
    """Labels on a grid over the whole picture, each with a line from its nearer end, or its middle."""
    rows = int((area.bottom - area.top) / LINE)
    room = area.right - area.left - point.width
    columns = int(room / _GRID)
    for row, column in product(range(rows), range(columns + 1)):
        left = area.left + _GRID * column
        right = left + point.width
        x = left
        side = 1
        if right <= point.x:
            x = right
            side = -1
        elif left < point.x:
            x = (left + right) / 2
            side = 0
        y = area.top + LINE * (row + 0.5)
        yield _label(point, x, y, side, is_beside=False)


def _covers(label: Label, others: Sequence[Point], labels: Sequence[Label]) -> bool:
    """Whether the label lies on a point, a label or a line."""
    for other in others:
        if label.box.meets(other.box):
            return True
    for placed in labels:
        if label.box.meets(placed.box):
            return True
        if placed.leader and placed.leader.meets(label.box):
            return True
    return False


def _crossed(label: Label, labels: Sequence[Label]) -> int:
    """How many labels its line crosses."""
    if label.leader is None:
        return 0
    return sum(label.leader.meets(placed.box) for placed in labels)


def _cost(
    label: Label,
    point: Point,
    others: Sequence[Point],
    labels: Sequence[Label],
) -> float:
    """What the label covers and its line crosses, and whether it seems to be another point's."""
    cost = 0.0
    for each in (point, *others):
        for bar in each.bars:
            cost += _COVERS_BAR * bar.meets(label.box)
    own_distance = label.box.distance(point.x, point.y)
    for other in others:
        distance = label.box.distance(other.x, other.y)
        is_nearer = distance < own_distance + _BY_FAR
        if is_nearer and label.leader is None:
            cost += _NEARER_OTHER
        if label.leader:
            cost += _CROSSES_POINT * label.leader.meets(other.box)
    for placed in labels:
        if label.leader and placed.leader:
            cost += _CROSSES_LINE * label.leader.crosses(placed.leader)
    return cost


def _candidates(point: Point) -> Iterator[tuple[float, Label]]:
    """Places with their distances, nearest first."""
    for distance in _DISTANCES:
        for side, height in product(_SIDES, _HEIGHTS):
            if distance == 0 and abs(height) > 1:
                continue
            across = _NEAR + distance
            down = LINE + 0.7 * distance
            if side == 0:
                if abs(height) != 1:
                    continue
                down = LINE + 2 + distance
            label = _label(
                point,
                x=point.x + side * across,
                y=point.y + height * down,
                side=side,
                is_beside=distance == 0,
            )
            yield distance, label


def _label(
    point: Point,
    x: float,
    y: float,
    side: int,
    is_beside: bool,
) -> Label:
    """Its text begins at x on the right side, ends there on the left side, or has it in its middle."""
    width = point.width
    left = x
    align = "left"
    if side == 0:
        left = x - width / 2
        align = "center"
    if side == -1:
        left = x - width
        align = "right"
    half = LINE / 2
    box = Box(
        left=left,
        top=y - half,
        right=left + width,
        bottom=y + half,
    )
    if is_beside:
        return Label(box, align, x)
    end = y
    if side == 0:
        end = box.top if y > point.y else box.bottom
    leader = Line(
        point.x,
        point.y,
        x2=x - 2 * side,
        y2=end,
    )
    return Label(box, align, x, leader)

"""Where a convolution's kernel meets its image."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

Pair = tuple[int, int]


@dataclass(frozen=True)
class Axis:
    """A convolution along one axis of the image."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    @property
    def outputs(self) -> int:
        """How many places the kernel takes."""
        span = self.dilation * (self.kernel - 1) + 1
        free = self.size + 2 * self.padding - span
        return free // self.stride + 1

    @property
    def taps(self) -> range:
        """The entries of the kernel that meet the image at some place; the others meet padding only."""
        acting = [tap for tap in range(self.kernel) if self._acts(tap)]
        if not acting:
            return range(0)
        return range(acting[0], acting[-1] + 1)

    def _acts(self, tap: int) -> bool:
        first = tap * self.dilation - self.padding
        end = first + self.outputs * self.stride
        seen = range(first, end, self.stride)
        return any(0 <= pixel < self.size for pixel in seen)


@dataclass(frozen=True)
class Taps:
    """The part of a kernel that ever meets the image: the rest multiplies padding only, and never learns.

    >>> Taps.of((1, 1), (3, 3), (1, 1), (1, 1), (1, 1))  # on a single pixel only the centre acts
    Taps(kernel=(3, 3), rows=range(1, 2), columns=range(1, 2))
    """

    kernel: Pair
    rows: range
    columns: range

    @classmethod
    def of(
        cls,
        image: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
    ) -> "Taps":
        rows, columns = map(Axis, image, kernel, stride, padding, dilation)
        return cls((rows.kernel, columns.kernel), rows.taps, columns.taps)

    @property
    def shape(self) -> Pair:
        return len(self.rows), len(self.columns)

    @property
    def count(self) -> int:
        return len(self.rows) * len(self.columns)

    @property
    def whole(self) -> bool:
        return self.shape == self.kernel

    def crop(self, weight: Tensor) -> Tensor:
        """These taps of a weight [out, in, height, width]."""
        if self.whole:
            return weight
        rows = slice(self.rows.start, self.rows.stop)
        columns = slice(self.columns.start, self.columns.stop)
        return weight[:, :, rows, columns]


def geometry(
    x: Tensor,
    stride: int | Sequence[int],
    padding: int | Sequence[int] | str,
    dilation: int | Sequence[int],
    groups: int,
) -> tuple[Pair, Pair, Pair] | None:
    """Stride, padding and dilation of a convolution that can be a product of patches, else None."""
    if x.ndim != 4 or isinstance(padding, str) or groups != 1:
        return None
    return _pair(stride), _pair(padding), _pair(dilation)


def _pair(value: int | Sequence[int]) -> Pair:
    if isinstance(value, int):
        return value, value
    return value[0], value[-1]

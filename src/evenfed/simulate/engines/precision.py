"""Which products a GPU may round."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ...settings import Precision


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Whether a GPU may round float32 products to tf32; torch's default allows it for convolutions."""
    products = torch.backends.cuda.matmul
    convolutions = torch.backends.cudnn
    products_before = products.allow_tf32
    convolutions_before = convolutions.allow_tf32
    products.allow_tf32 = precision == "tf32"
    convolutions.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        products.allow_tf32 = products_before
        convolutions.allow_tf32 = convolutions_before

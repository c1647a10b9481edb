"""The GPU's own kernels, run by Triton's interpreter, where Triton is installed: with torch for CUDA, and in CI."""

import importlib.util
import os
import subprocess
import sys

import pytest

COMPARED = """
import torch
from evenfed.simulate.layers import implicit, kernels

for form in {forms}:
    clients, batch, height, width, depth, count, kernel, stride, padding = form
    torch.manual_seed(0)
    x, w = torch.randn(clients, batch, height, width, depth), torch.randn(clients, count, kernel, kernel, depth)
    size = [(each + 2 * padding - kernel) // stride + 1 for each in (height, width)]
    g = torch.randn(clients, batch, *size, count)
    around, beyond = [padding] * 2, [kernel - 1 - padding] * 2
    for theirs, ours, given in (
        (implicit.correlate, kernels.correlated, (x, w, size, stride, 1, around, False)),
        (implicit.correlate, kernels.correlated, (g, w, [height, width], 1, stride, beyond, True)),
        (implicit.weight_gradient, kernels.weight_gradients, (x, g, [kernel] * 2, stride, around)),
    ):
        expected, found = theirs(*given), ours(*given)
        assert found.shape == expected.shape, (form, theirs, found.shape)
        assert (found - expected).norm() < 2e-6 * expected.norm(), (form, theirs, found)
"""
FORMS = [  # clients, batch, height, width, in, out, kernel, stride, padding
    (2, 2, 6, 6, 16, 32, 3, 1, 1),
    (1, 2, 5, 7, 32, 16, 3, 2, 1),
    (1, 1, 7, 7, 16, 16, 5, 2, 2),
    (1, 40, 8, 8, 16, 16, 2, 1, 0),  # so many places that a sum has parts
]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_are_torchs_convolution_and_its_gradients():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMPARED.format(forms=FORMS)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

"""A function of tensors that stay where they are, made once and then repeated with no Python in between.

It is traced to its bare tensor operations; on a GPU these are compiled and recorded as one CUDA graph.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .tracing import trace

COMPILED_OPERATIONS = 6000  # unrolled recurrences are longer: compiling them would take many minutes


class Replay:
    """`function(*arguments)` again and again: write new values into the arguments, call, read `result`.

    `note` says what was left out, and why: compiling where that fails is skipped, not fatal.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Tensor, ...]) -> None:
        self.arguments, self.note = arguments, ""
        device = arguments[0].device
        operations = trace(function, arguments, tracing_mode="fake", _allow_non_fake_inputs=True)
        self.run: Callable[..., Any] = operations
        self.result: Any = None
        self.graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            with torch.cuda.device(device), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._compile(operations)
                self._record()

    def __call__(self) -> Any:
        if self.graph is not None:
            self.graph.replay()
        else:
            with torch.no_grad():
                self.result = self.run(*self.arguments)
        return self.result

    def _compile(self, operations: torch.fx.GraphModule) -> None:
        count = len(operations.graph.nodes)
        if count > COMPILED_OPERATIONS:
            self.note = f"not compiled: {count} operations, more than {COMPILED_OPERATIONS}"
            return
        compiled = torch.compile(operations, dynamic=False, fullgraph=True)
        try:
            with torch.no_grad():
                compiled(*self.arguments)
            self.run = compiled
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever the compiler trips over: the bare operations do the same work
            self.note = f"not compiled: {type(error).__name__}: {str(error).strip().splitlines()[0]}"

    def _record(self) -> None:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(beside):
            for _ in range(2):
                self.run(*self.arguments)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            self.result = self.run(*self.arguments)
        self.graph = graph

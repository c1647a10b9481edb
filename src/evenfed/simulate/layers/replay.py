"""A function of tensors repeated without Python's overhead: traced to its bare tensor operations, which are replayed.

The operations are the same, and so are the results, bit for bit. On a GPU they are compiled and recorded as one CUDA
graph.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from ...core.errors import first_line

PAYS_OFF_AFTER = 64  # calls: a trace costs about as much as the overhead of 150
PAYS_OFF_WITH_COMPILER = 4000  # calls: the first trace of a process imports torch's compiler, which takes seconds
KEPT = 32  # traces: shapes that change every round are not worth keeping
COMPILED_OPERATIONS = 6000  # unrolled recurrences are longer: compiling them would take many minutes


def trace(function: Callable[..., Any], tensors: Sequence[Tensor], **how: Any) -> GraphModule:
    """The bare tensor operations of `function(*tensors)`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracer = make_fx(lambda *t: function(*t), **how)
        return tracer(*tensors)


class Traced:
    """`function` of tensors only, with gradients computed inside it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls: Counter[Any] = Counter()
        self.tried: set[Any] = set()
        self.traces: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        forms = [(t.shape, t.stride()) for t in tensors]
        key = tuple(forms)
        replay = self.traces.get(key)
        if replay is not None:
            with torch.no_grad():
                return replay(*tensors)
        self.calls[key] += 1
        has_compiler = "torch._dynamo" in sys.modules
        least = PAYS_OFF_AFTER if has_compiler else PAYS_OFF_WITH_COMPILER
        if self.calls[key] >= least and key not in self.tried and len(self.traces) < KEPT:
            self.tried.add(key)
            with suppress(Exception):  # what cannot be traced is called as it is, and not tried again
                self.traces[key] = trace(self.function, tensors)
        return self.function(*tensors)


class Replay:
    """`function(*arguments)` again and again: write new values into the arguments, call, read `result`.

    Where compiling or recording fails it is skipped; `notes` say what was skipped, and why.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Tensor, ...]) -> None:
        self.arguments = arguments
        self.notes: list[str] = []
        self.compiled = False
        self.result: Any = None
        self.graph: torch.cuda.CUDAGraph | None = None
        device = arguments[0].device
        if device.type != "cuda":
            operations = trace(function, arguments)
            self.run: Callable[..., Any] = operations
        else:
            operations = trace(function, arguments, tracing_mode="fake", _allow_non_fake_inputs=True)
            self.run = function  # only a compiler may trust how fake tensors lie in memory
            with torch.cuda.device(device), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._compile(operations)
                self._record()
        targets = [str(node.target) for node in operations.graph.nodes]
        self.has_kernels = any("evenfed" in target for target in targets)

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
            self.notes.append(f"not compiled: {count} operations, more than {COMPILED_OPERATIONS}")
            return
        compiled = torch.compile(operations, dynamic=False, fullgraph=True)
        try:
            with torch.no_grad():
                compiled(*self.arguments)
            self.run = compiled
            self.compiled = True
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever the compiler trips over: the function itself does the same work
            self._note("not compiled", error)

    def _record(self) -> None:
        try:
            self.graph = self._recorded()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # something in it waits for the host, say
            self._note("not recorded as a CUDA graph", error)

    def _note(self, skipped: str, error: Exception) -> None:
        kind = type(error).__name__
        reason = first_line(error)
        self.notes.append(f"{skipped}: {kind}: {reason}")

    def _recorded(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            for _ in range(2):
                self.run(*self.arguments)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            self.result = self.run(*self.arguments)
        return graph

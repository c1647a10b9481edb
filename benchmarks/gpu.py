"""The GPU engine on the paper's work: checks first, then samples/s and seconds a round, against named peers in one run.

python benchmarks/gpu.py            everything; writes benchmarks/results/gpu.json
python benchmarks/gpu.py checks     some parts (ceilings, kernels, checks, steps, rounds, peers, language), merged in
python benchmarks/gpu.py tables     those of benchmarks/README.md from that file; needs no GPU

50 clients with the sizes and labels of the paper's CIFAR-10 split and made-up images, a pattern for each class under
noise: speed does not depend on what they show.
"""

import itertools
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import evenfed
import page
from evenfed import models
from evenfed.comparison.storage.provenance import provenance
from evenfed.core.streams import Batching
from evenfed.data.partition import dirichlet, split
from evenfed.local.training import LocalTraining
from evenfed.settings import Precision
from evenfed.simulate import evaluation
from evenfed.simulate.engines.precision import arithmetic
from evenfed.simulate.engines.reference import Reference
from evenfed.simulate.engines.slots import Slots
from evenfed.simulate.layers import implicit
from evenfed.simulate.loop import Run, advance, start
from evenfed.simulate.problem import Engine, EvalRequest, Problem, Task
from peers.naive_fl import round_seconds

RESULT = Path(__file__).parent / "results" / "gpu.json"
DEVICE = "cuda"
PAPER = ["fedavg", "qffl", "afl", "gifair", "term", "propfair", "delta_fl", "vred", "semi_vred"]
FLOP = {"imagenet": 0.217e9, "cifar": 3.33e9}  # of one training sample of ResNet-18 at 32x32
FORMS = [  # of its large convolutions with the CIFAR stem: size, channels in and out, stride
    (32, 64, 64, 1), (32, 64, 128, 2), (16, 128, 128, 1), (16, 128, 256, 2),
    (8, 256, 256, 1), (8, 256, 512, 2), (4, 512, 512, 1),
]  # fmt: skip


def paper_clients() -> list[evenfed.Client]:
    """50 clients as unequal as the paper's, half of each for testing."""
    draw = torch.Generator().manual_seed(0)
    labels = np.repeat(np.arange(10), 5000)

    patterns = torch.randn(10, 3, 32, 32, generator=draw)

    def images(rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        shown = torch.from_numpy(labels[rows])
        noise = torch.randn(len(rows), 3, 32, 32, generator=draw)
        return (128 + 30 * (patterns[shown] + noise)).clamp(0, 255).to(torch.uint8), shown

    parts = [split(rows, labels, 0.5) for rows in dirichlet(labels, 50, 0.05, seed=0)]
    return [evenfed.Client(images(p.train), images(p.test)) for p in parts]


def sentences(clients: int = 20, count: int = 5600, known: int = 10_004) -> list[evenfed.Client]:
    """Clients as large as the paper's StackOverflow users: sentences of 20 words out of those `known`."""
    draw = torch.Generator().manual_seed(0)

    def words(rows: int) -> tuple[Tensor, Tensor]:
        text = torch.randint(1, known, (rows, 21), generator=draw)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    return [evenfed.Client(words(count), words(256)) for _ in range(clients)]


def resnet(stem: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(models.FromBytes(), models.resnet18_gn(10, stem=stem))  # type: ignore[arg-type]


def milliseconds(work: Callable[[], Any], repeats: int) -> float:
    """Median over repeats, by the device's own clock."""
    for _ in range(3):
        work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return float(np.median([a.elapsed_time(b) for a, b in itertools.pairwise(marks)]))


def ceilings() -> dict[str, float]:
    """What the device does at most: products of 8192 x 8192 and a copy of 4 GB."""
    found = {}
    for name, kind, precision in (("bf16", torch.bfloat16, "fp32"), ("tf32", torch.float32, "tf32")):
        a, b = torch.randn(2, 8192, 8192, device=DEVICE, dtype=kind)
        with arithmetic(precision):  # type: ignore[arg-type]
            found[f"{name}_tflops"] = 2 * 8192**3 / milliseconds(lambda a=a, b=b: a @ b, 30) / 1e9  # type: ignore[misc]
    source = torch.randn(1 << 30, device=DEVICE)
    target = torch.empty_like(source)
    found["copy_tb_per_s"] = 2 * 4 * (1 << 30) / milliseconds(lambda: target.copy_(source), 20) / 1e9
    return found


def checks() -> dict[str, float]:
    """One client's update: this engine against the reference in fp32, and how far less precision moves it."""
    clients = [c for c in paper_clients() if 128 < len(c.train[0]) <= 256][:2]  # 3 or 4 steps
    problem = Problem.of(resnet("imagenet"), clients, evenfed.Settings(device=DEVICE, batch_size=64))
    torch.backends.cudnn.deterministic = True  # so that the reference repeats itself
    exact = _update(problem, "fp32", reference=True)
    found = {f"{p}_against_reference": _distance(_update(problem, p), exact) for p in ("fp32", "tf32", "bf16")}  # type: ignore[arg-type]
    found["reference_repeated"] = _distance(_update(problem, "fp32", reference=True), exact)
    found["other_batch_order"] = _distance(_update(problem, "fp32", reference=True, seed=1), exact)
    torch.backends.cudnn.deterministic = False
    ok = found["fp32_against_reference"] < 1e-3 and found["bf16_against_reference"] < found["other_batch_order"]
    return {**found, "passed": ok}


def _update(problem: Problem, precision: Precision, reference: bool = False, seed: int = 0) -> Tensor:
    orders = [Task(0, seed, problem.theta, torch.arange(2), LocalTraining(0.005, Batching(64)))]
    with arithmetic(precision):
        engine = Reference(problem) if reference else Slots(problem, 16, precision)
        found = list(engine.train(orders))
    rows = torch.zeros(2, len(problem.theta), device=DEVICE)
    for _, u in found:
        rows[u.ids, :] = rows[u.ids, :].index_copy(1, _columns(u, problem), u.delta)  # type: ignore[index,arg-type]
    return rows


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def kernels() -> list[dict[str, Any]]:
    """The convolutions of ResNet-18 with the CIFAR stem, 8 clients x 64 images in bf16: speed, and errors in fp32's."""
    if not implicit.has_kernels(DEVICE, torch.bfloat16):
        return []
    return [_kernel(*form) for form in FORMS]


def _kernel(size: int, depth: int, count: int, stride: int, clients: int = 8, batch: int = 64) -> dict[str, Any]:
    out = size // stride
    shapes = (clients, batch, size, size, depth), (clients, count, 3, 3, depth), (clients, batch, out, out, count)
    x, w, g = (torch.randn(shape, device=DEVICE).to(torch.bfloat16) for shape in shapes)
    calls = {
        "forward": lambda: implicit.correlate(x, w, [out, out], stride, 1, [1, 1], False),
        "images": lambda: implicit.correlate(g, w, [size, size], 1, stride, [1, 1], True),
        "weights": lambda: implicit.weight_gradient(x, g, [3, 3], stride, [1, 1]),
    }
    one, weight, slope = (each[0].permute(0, 3, 1, 2).float().requires_grad_() for each in (x, w, g))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        exact = F.conv2d(one, weight, stride=stride, padding=1)
        theirs = [exact.detach(), *torch.autograd.grad(exact, (one, weight), slope.detach())]
    flop, found = 2 * clients * batch * out * out * count * depth * 9, {}
    for (name, call), right in zip(calls.items(), theirs, strict=True):
        found[f"{name}_error"] = _distance(call()[0].float(), right.permute(0, 2, 3, 1))
        found[f"{name}_tflops"] = flop / _recorded(call) / 1e9
    return {"size": size, "in": depth, "out": count, "stride": stride, **found}


def _recorded(call: Callable[[], Any], times: int = 20) -> float:
    """Milliseconds of a call on the device alone: recorded in a graph, so that no time goes into starting it."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return milliseconds(graph.replay, 5) / times


def _columns(update: evenfed.Update, problem: Problem) -> Tensor:
    everything = torch.arange(len(problem.theta), device=DEVICE)
    return everything if update.columns is None else update.columns


def step(
    name: str, model: nn.Module, clients: list[evenfed.Client], slots: int, precision: Precision
) -> dict[str, Any]:
    """Samples/s of the training step alone, all slots busy, and of the loss pass."""
    problem = Problem.of(model, clients, evenfed.Settings(device=DEVICE, batch_size=64))
    torch.cuda.reset_peak_memory_stats()
    with arithmetic(precision):
        engine, began = Slots(problem, slots, precision), time.perf_counter()
        made = engine._step(LocalTraining(1.0, Batching(64)), False, ())
        built = time.perf_counter() - began
        made.put(torch.arange(engine.slots, device=DEVICE), problem.theta[made.live.columns].repeat(engine.slots, 1))
        rows = torch.randint(len(problem.train.inputs), made.mask.shape, device=DEVICE)
        made.lr.fill_(1e-3)
        spent = milliseconds(lambda: made(rows, torch.ones_like(made.mask), made.keys), 30)
        question = EvalRequest(problem.theta, torch.arange(len(clients)), problem.buffers)
        passed = milliseconds(lambda: engine.losses([question]), 10)
    return {
        "name": name,
        "convolutions": "kernels" if made.replay.has_kernels else "patches",
        "precision": precision,
        "slots": engine.slots,
        "step_ms": spent,
        "samples_per_s": engine.slots * made.width / spent * 1e3,
        "loss_pass_samples_per_s": len(problem.train.inputs) / passed * 1e3,
        "live_parameters": len(made.live),
        "parameters": len(problem.theta),
        "build_s": built,
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9,
        "how": engine.how,
    }


def steps() -> list[dict[str, Any]]:
    images, words = paper_clients(), sentences()
    torch.manual_seed(0)
    found = [step("LSTM, next word", models.lstm_words(10_004), words, 20, "bf16")]
    for stem, name, slots in (("imagenet", "ImageNet", 16), ("cifar", "CIFAR", 8)):
        for precision, least in (("bf16", implicit.PLACES), ("bf16", math.inf), ("tf32", math.inf)):
            with mock.patch.object(implicit, "PLACES", least):  # beyond any size: by patches
                each = step(f"ResNet-18 GN, {name} stem", resnet(stem), images, slots, precision)  # type: ignore[arg-type]
            found.append({**each, "tflops": each["samples_per_s"] * FLOP[stem] / 1e12})
    return found


def together(problem: Problem, engine: Engine, runs: int, rounds: int = 3) -> dict[str, Any]:
    """Whole rounds of a comparison (losses, training, closing, accuracy of every client), runs sharing slots."""
    settings = evenfed.Settings(rounds=rounds, lr=0.005, batch_size=64, device=DEVICE, precision="bf16")
    planned = [Run(name, evenfed.algorithms.get(name), settings) for name in (PAPER * 3)[:runs]]
    states, spent = [start(run, problem) for run in planned], []
    everyone = evaluation.panel(problem, settings)
    for _ in range(rounds + 1):
        began = time.perf_counter()
        states, _ = advance(planned, states, problem, engine, everyone)
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - began)
    each = [s / runs for s in spent[1:]]
    return {"runs": runs, "first_round_s": spent[0], "seconds_a_round_and_run": float(np.median(each)), "all": each}


def rounds() -> list[dict[str, Any]]:
    """27 runs first: their first round includes tracing, compiling and recording."""
    settings = evenfed.Settings(lr=0.005, batch_size=64, device=DEVICE, precision="bf16")
    problem = Problem.of(resnet("imagenet"), paper_clients(), settings)
    engine = Slots(problem, 16, "bf16")
    return [together(problem, engine, runs) for runs in (27, 10, 1)]


def peers() -> dict[str, float]:
    """One round of one run in the reference engine and in naive code, on the same device."""
    clients = paper_clients()
    return _peers(resnet("imagenet"), clients, [(x.float() / 255, y) for x, y in (c.train for c in clients)])


def _peers(model: nn.Module, clients: list[evenfed.Client], shown: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """`shown`: the clients' training data as naive code has them."""
    settings = evenfed.Settings(rounds=1, lr=0.005, batch_size=64, device=DEVICE, engine="reference")
    problem = Problem.of(model, clients, settings)
    run = Run("fedavg", evenfed.algorithms.get("fedavg"), settings)
    engine, smallest = Reference(problem), int(problem.train.sizes.clamp(min=1).argmin())
    list(engine.train([Task(0, 0, problem.theta, torch.tensor([smallest]), settings.local(0))]))  # warm up
    began = time.perf_counter()
    advance([run], [start(run, problem)], problem, engine, evaluation.panel(problem, settings))
    torch.cuda.synchronize()
    reference = time.perf_counter() - began
    return {"reference_round_s": reference, "naive_round_s": round_seconds(model, shown, 0.005, 64, DEVICE)}


def language() -> dict[str, Any]:
    """The LSTM of the next-word task the same way: whole rounds, and its peers."""
    clients, model = sentences(), models.lstm_words(10_004)
    settings = evenfed.Settings(lr=0.005, batch_size=64, device=DEVICE, precision="bf16")
    problem = Problem.of(model, clients, settings)
    engine = Slots(problem, 20, "bf16")
    shared = [together(problem, engine, runs, rounds=2) for runs in (4, 1)]
    return {"rounds": shared, **_peers(model, clients, [c.train for c in clients])}


PARTS: dict[str, Callable[[], Any]] = {
    f.__name__: f for f in (ceilings, kernels, checks, steps, rounds, peers, language)
}


def main() -> None:
    wanted = sys.argv[1:] or list(PARTS)
    if wanted == ["tables"]:
        page.put("gpu", tables(json.loads(RESULT.read_text())))
        return
    if not torch.cuda.is_available() or set(wanted) - set(PARTS):
        sys.exit(f"gpu.py needs a CUDA device, and takes any of: {', '.join(PARTS)}; or `tables` alone")
    whole = set(wanted) == set(PARTS)
    result = {"provenance": provenance()} if whole else json.loads(RESULT.read_text())
    for name in wanted:
        result[name] = PARTS[name]()
        if not whole:
            result.setdefault("measured_apart", {})[name] = provenance()
        print(name, json.dumps(result[name], indent=1), flush=True)
        RESULT.write_text(json.dumps(_with_ratios(result), indent=1) + "\n")
    if set(PARTS) <= set(result):
        page.put("gpu", tables(result))
    if not result.get("checks", {}).get("passed", True):
        sys.exit("gpu.py: the checks failed; see `checks` above")


def tables(result: dict[str, Any]) -> str:
    """The Markdown that benchmarks/README.md shows."""
    top, check = result["ceilings"], result["checks"]
    made = result["provenance"]
    lines = [
        f"{made['hardware']['gpu']}, torch {made['versions']['torch']}; its ceilings: {top['bf16_tflops']:.0f} TFLOP/s "
        f"in bf16, {top['tf32_tflops']:.0f} in tf32, copying {top['copy_tb_per_s']:.1f} TB/s.\n",
        "| training step, all slots busy | by | slots | ms | samples/s | TFLOP/s | loss pass, samples/s | memory, GB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for s in result["steps"]:
        work = f"{s['tflops']:.0f}" if "tflops" in s else "-"
        passed = f"{s['loss_pass_samples_per_s']:,.0f}" if "loss_pass_samples_per_s" in s else "-"
        figures = f"{s['slots']} | {s['step_ms']:.2f} | {s['samples_per_s']:,.0f} | {work} | {passed}"
        by = s["convolutions"] if "tflops" in s else "-"
        lines.append(f"| {s['name']}, {s['precision']} | {by} | {figures} | {s['memory_gb']:.1f} |")
    if result.get("kernels"):
        lines += _kernels(result["kernels"])
    lines += _rounds("ResNet-18 GN, ImageNet stem", result["rounds"], result["peers"])
    if known := result.get("language"):
        lines += _rounds("LSTM, next word", known["rounds"], known)
    lines += ["", "| how far an update is from the reference engine's in fp32 | relative |", "|---|---|"]
    words = {
        "fp32_against_reference": "fp32",
        "tf32_against_reference": "tf32",
        "bf16_against_reference": "bf16",
        "reference_repeated": "the reference engine itself, once more",
        "other_batch_order": "the reference engine with another order of batches",
    }
    lines += [f"| {told} | {check[key]:.2g} |" for key, told in words.items()]
    return "\n".join(lines)


def _kernels(measured: list[dict[str, Any]]) -> list[str]:
    lines = ["", "| kernel of | forward | images' gradient | weights' gradient |", "|---|---|---|---|"]
    for k in measured:
        each = [
            f"{k[f'{n}_tflops']:.0f} TFLOP/s, error {k[f'{n}_error']:.0e}" for n in ("forward", "images", "weights")
        ]
        lines.append(f"| {k['size']}x{k['size']}, {k['in']} to {k['out']}, stride {k['stride']} | {' | '.join(each)} |")
    return lines


def _rounds(name: str, measured: list[dict[str, Any]], peers: dict[str, float]) -> list[str]:
    lines = ["", f"| whole rounds, {name} | seconds per round and run | evenfed is |", "|---|---|---|"]
    shared = measured[0]["seconds_a_round_and_run"]
    for r in measured:
        runs = f"{r['runs']} runs share the slots" if r["runs"] > 1 else "one run alone"
        each = r["seconds_a_round_and_run"]
        lines.append(f"| evenfed, bf16, {runs} | {each:.4f} | {each / shared:.2f}x |")
    named = {"reference": "evenfed's reference engine, eager fp32", "naive": "naive code: DataLoader, fp32, one by one"}
    for peer, words in named.items():
        seconds = peers[f"{peer}_round_s"]
        lines.append(f"| {words} | {seconds:.2f} | {seconds / shared:.0f}x |")
    return lines


def _with_ratios(result: dict[str, Any]) -> dict[str, Any]:
    if "rounds" in result and "peers" in result:
        shared = result["rounds"][0]["seconds_a_round_and_run"]
        result["ratios"] = {name.removesuffix("_round_s"): s / shared for name, s in result["peers"].items()}
    return result


if __name__ == "__main__":
    main()

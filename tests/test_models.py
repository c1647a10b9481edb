"""Models by name: the paper's sizes, their stems, one's own by dotted path, bytes as input."""

import numpy as np
import pytest
import torch
from torch import nn

import evenfed
from evenfed import models
from evenfed.clients.client import Pool
from evenfed.simulate.engines.parallel import why_not_stacked
from evenfed.simulate.engines.reference import Reference
from evenfed.simulate.engines.stacked import Stacked
from evenfed.simulate.loop import rounds, start
from evenfed.simulate.problem import Problem
from evenfed.simulate.state import Run

IMAGES, SYMBOLS = torch.zeros(1, 3, 32, 32), torch.zeros(1, 20, dtype=torch.int64)


@pytest.mark.parametrize(
    ("name", "inputs", "classes", "options", "parameters"),
    [
        ("resnet18_gn", IMAGES, 10, {}, 11_181_642),
        ("resnet18_gn", IMAGES, 100, {}, 11_227_812),
        ("resnet18_gn", IMAGES, 10, {"stem": "cifar"}, 11_173_962),
        ("lstm_words", SYMBOLS, 10_004, {}, 4_053_428),
        ("lstm_chars", SYMBOLS, 80, {}, 819_920),
        ("mlp", torch.zeros(1, 1, 8, 8), 10, {"hidden": [32]}, 2410),
    ],
)
def test_parameter_counts(name, inputs, classes, options, parameters):
    model = models.get(name, inputs, classes, **options)
    assert sum(p.numel() for p in model.parameters()) == parameters
    outputs = model(inputs)
    assert outputs.shape == ((1, classes, 20) if inputs.dtype == torch.int64 else (1, classes))


def test_the_imagenet_stem_shrinks_a_small_image_to_one_pixel_and_the_cifar_stem_does_not():
    def last_map(stem):
        seen = []
        model = models.resnet18_gn(10, stem=stem)
        model[-3].register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[-1]))
        model(IMAGES)
        return seen[0]

    assert (last_map("imagenet"), last_map("cifar")) == (1, 4)


def test_no_normalisation_keeps_statistics_so_the_models_can_be_stacked():
    tiny = [evenfed.Client((torch.rand(4, 3, 32, 32), torch.randint(0, 10, (4,))))]
    problem = Problem.of(models.resnet18_gn(10), tiny, evenfed.Settings(device="cpu"))
    assert why_not_stacked(problem) is None


def test_bytes_are_scaled_a_batch_at_a_time():
    bytes_ = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    torch.manual_seed(0)
    model = models.get("cnn", bytes_, 5)
    assert isinstance(model[0], models.FromBytes) and torch.allclose(model(bytes_), model[1](bytes_ / 255))


def test_training_on_bytes_agrees_between_engines():
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (20, 1, 6, 6), generator=draw, dtype=torch.uint8)
    pool = Pool(images, torch.randint(0, 3, (20,), generator=draw), torch.tensor([0, 8]), torch.tensor([8, 12]))
    settings = evenfed.Settings(rounds=2, batch_size=4, device="cpu")
    problem = Problem.on(models.get("mlp", images, 3), pool, pool, ["a", "b"], settings)
    assert problem.train.inputs.dtype == torch.uint8
    runs = [Run("vred", evenfed.algorithms.VRed(), settings)]
    ends = []
    for engine in (Reference(problem), Stacked(problem, 8)):
        *_, (states, _) = rounds(runs, [start(r, problem) for r in runs], problem, engine)
        ends.append(states[0].server.theta)
    assert torch.allclose(*ends, rtol=1e-5, atol=1e-7)


def test_accuracy_with_and_without_padding():
    """Targets: 3 real symbols then padding 0; a model that always says 0 is right on padding alone."""
    targets = torch.tensor([[1, 2, 0, 0, 0], [2, 1, 1, 0, 0]])
    pool = Pool(targets.clone(), targets, torch.tensor([0, 1]), torch.tensor([1, 1]))
    settings = evenfed.Settings(rounds=1, lr=1e-9, device="cpu")
    model = models.lstm_words(3, 4, 4)
    for engine in ("reference", "parallel"):
        problem = Problem.on(model, pool, pool, ["a", "b"], settings, padding=0)
        with torch.no_grad():
            for module in (problem.model.output, problem.model.between):
                module.weight.zero_()
            problem.model.output.bias.copy_(torch.tensor([1.0, 0.5, 0.0]))
        runs = [
            Run("fedavg", evenfed.algorithms.FedAvg(), evenfed.Settings(rounds=1, lr=1e-9, device="cpu", engine=engine))
        ]
        made = Reference(problem) if engine == "reference" else Stacked(problem, 4)
        ((_, (record,)),) = rounds(runs, [start(r, problem) for r in runs], problem, made)
        assert np.allclose(record.accuracy, [0.6, 0.4]) and np.allclose(record.unpadded, [0.0, 0.0])
    with torch.no_grad():
        problem.model.output.bias.copy_(torch.tensor([0.0, 1.0, 0.5]))  # always says 1
    ((_, (record,)),) = rounds(runs, [start(r, problem) for r in runs], problem, Reference(problem))
    assert np.allclose(record.accuracy, [0.2, 0.4]) and np.allclose(record.unpadded, [1 / 2, 2 / 3])


def test_ones_own_model_by_dotted_path(monkeypatch, tmp_path):
    function = "def net(width=3):\n    return torch.nn.Linear(width, 2)\n"
    kind = (
        "class Net(torch.nn.Linear):\n    def __init__(self, width, bias=True):\n        super().__init__(width, 2)\n"
    )
    (tmp_path / "my_models.py").write_text(f"import torch\n\n{function}\n{kind}")
    monkeypatch.syspath_prepend(tmp_path)
    made = models.get("my_models.net", torch.zeros(1, 5), 2, width=5)
    assert isinstance(made, nn.Linear) and made.in_features == 5
    for name, options, told in [
        ("my_models.nett", {}, "cannot be imported"),
        ("nowhere.net", {}, "cannot be imported"),
        ("mlp", {"classes": 3}, "option of model mlp 'classes'; allowed: hidden"),
        ("my_models.net", {"wdth": 1}, "option of model my_models.net 'wdth'; did you mean 'width'"),
        ("my_models.Net", {}, "missing 1 required positional argument: 'width'; its options: width, bias"),
        ("my_models.Net", {"wdth": 1}, "did you mean 'width'. Allowed: width, bias"),
        ("mlp", {"hiden": [3]}, "option of model mlp 'hiden'; did you mean 'hidden'. Allowed: hidden"),
        ("resnet19", {}, "did you mean 'resnet18_gn'"),
        ("cnn", {}, "needs images"),
        ("lstm_words", {}, "needs sequences"),
        ("builtins.dict", {}, "must make a torch.nn.Module"),
    ]:
        with pytest.raises(evenfed.InputError, match=told):
            models.get(name, torch.zeros(1, 5), 2, **options)
    with pytest.raises(evenfed.InputError, match="unknown stem 'vgg'"):
        models.get("resnet18_gn", IMAGES, 10, stem="vgg")


def test_normalised_images_are_centred_and_scaled():
    images = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1)
    plain, centred = (models.FromBytes(normalise)(images).flatten().tolist() for normalise in (False, True))
    assert plain == [0, 1] and centred == [-2, 2]
    made = models.get("mlp", images, 3, normalise=True, hidden=[4])
    assert made[0].normalise and not models.get("mlp", images, 3, hidden=[4])[0].normalise
    with pytest.raises(evenfed.InputError, match="come as bytes"):
        models.get("mlp", images.float(), 3, normalise=True)

"""Wrong input that ended in another library's error: each is refused in words now."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

import evenfed
from evenfed.cli import main
from evenfed.core.errors import InputError
from evenfed.data import DataSettings, federate
from evenfed.data.folder import read_folder

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])
CLIENTS = [evenfed.Client(train=(X, Y), test=(X, Y))] * 2
LARGE = 2**64


def train(model=None, clients=CLIENTS, **options):
    return evenfed.train(model or nn.Linear(4, 3), clients, "fedavg", **{"rounds": 1, **options})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"device": None}, "device='None' is not known"),
        ({"seed": LARGE}, r"seed=\d+: give a whole number below 2\*\*63"),
        ({"seed": 2**63}, "below"),
        ({"batch_seed": LARGE}, "below"),
        ({"batch_size": LARGE}, "below"),
        ({"rounds": LARGE}, "below"),
        ({"local_steps": LARGE}, "below"),
        ({"server_optimizer": torch.optim.LBFGS}, "LBFGS cannot take a step.*without a closure"),
        ({"server_optimizer": lambda p: torch.optim.SparseAdam(p)}, "SparseAdam cannot take a step.*dense gradient"),
        ({"server_optimizer": 5}, "server_optimizer=5: give a name"),
        ({"optimizer": torch.optim.SGD([torch.ones(1)], lr=1)}, "optimizer=<SGD>: give a name"),
        ({"smooth": 0}, "smooth=0: give a number above 0, at most 1"),
        ({"lrr": 1}, r"did you mean 'lr'\?$"),
        ({"server_optimizer": {"name": "adam", "lr": 1}}, "give server_lr=1"),
        ({"optimizer": {"name": "adam", "lr": 1}}, "give lr=1"),
        ({"loss": lambda outputs, targets: outputs.argmax(1)}, "loss has no gradient with respect to the outputs"),
        ({"loss": lambda outputs, targets: outputs.sum(1) + 1j}, "loss gave complex numbers"),
        ({"score": lambda outputs, targets: outputs.sum(1) + 1j}, "score gave complex numbers"),
        ({"score": lambda outputs, targets: outputs.sum(1) * torch.nan}, "score gave NaN or infinity for every client"),
    ],
)
def test_options(options, told):
    torch.manual_seed(0)
    with pytest.raises(InputError, match=told):
        train(**options)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ((X.to("meta"), Y), "inputs: a tensor on the meta device"),
        ((X, Y.to("meta")), "targets: a tensor on the meta device"),
        ((X.to_sparse(), Y), "a sparse or nested tensor; give a dense one"),
        ((X, Y.to_sparse()), "a sparse or nested tensor"),
    ],
)
def test_tensors(values, told):
    with pytest.raises(InputError, match=told):
        train(clients=[evenfed.Client(train=values, test=(X, Y))] * 2)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ((X[:, :3], Y), r"the model fails on a batch of 8 test inputs \[3\] float32"),
        ((X.long(), Y), r"the model fails on a batch of 8 test inputs \[4\] int64"),
        ((X, Y.float() + 0.5), "targets are float32"),
        ((X, Y[:, None]), r"loss fails on a batch \(test outputs \[8, 3\]"),
    ],
)
def test_test_data_of_another_width_or_type_than_training_data(values, told):
    with pytest.raises(InputError, match=told):
        train(clients=[evenfed.Client(train=(X, Y), test=values)] * 2)


@pytest.mark.filterwarnings("ignore:.*nested tensors", "ignore:Sparse CSR")  # torch's own, that these are new
def test_tensors_of_other_layouts():
    for values in (X.to_sparse_csr(), torch.nested.nested_tensor([X[:2], X[:3]])):
        with pytest.raises(InputError, match="a sparse or nested tensor"):
            train(clients=[evenfed.Client(train=(values, Y), test=(X, Y))] * 2)


class SparseModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 3).to_sparse())

    def forward(self, x):
        return x @ self.weight.to_dense()


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (nn.LazyLinear(3), "weight has no shape yet"),
        (nn.Linear(4, 3, device="meta"), "weight is on the meta device"),
        (SparseModel(), "weight is sparse"),
        (torch.jit.script(nn.Linear(4, 3)), "give the Python module"),
        (torch.jit.trace(nn.Linear(4, 3), torch.zeros(1, 4)), "give the Python module"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules", "ignore:.*torch.jit")
def test_models(model, told):
    with pytest.raises(InputError, match=told):
        train(model)


def test_data(tmp_path):
    with pytest.raises(InputError, match="at most one client per example"):
        federate(DataSettings(name="digits", examples=1))
    with pytest.raises(InputError, match="no client has a training example"):
        federate(DataSettings(name="digits", examples=1, clients=1))
    with pytest.raises(InputError, match="below"):
        federate(DataSettings(name="digits", clients=LARGE))
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 4), np.float32), y=np.array([0, 10**9]))
    with pytest.raises(InputError, match="classes go up to 1,000,000,000"):
        read_folder(tmp_path)


@pytest.mark.parametrize("kind", ["postgresql", "nonsense"])
def test_passwords_of_a_storage_are_not_echoed(tmp_path, monkeypatch, capsys, kind):
    pytest.importorskip("optuna")
    storage = f"{kind}://bob:hunter2@localhost/x?password=hunter2"
    arguments = ["tune", "--algorithms", "semi_vred", "--rounds", "1", "--storage", storage, "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["evenfed", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "cannot be used" in said and "hunter2" not in said and "bob:***@" in said

"""Every mistake in a file or on the command line ends in one message, with no traceback."""

import numpy as np
import pytest

import command

BAD_TOML = {
    "broken": ("[train\nrounds = 3", "is not valid TOML"),
    "unknown-key": ("[train]\nrouds = 3\n[algorithms.fedavg]", "did you mean 'rounds'"),
    "grid-beside-value": (
        "[algorithms.vred]\nbeta = 0.3\ngrid = { beta = [0.1, 0.2] }",
        "grid over 'beta', which is set beside it",
    ),
    "grid-of-lists": ("[algorithms.vred]\ngrid = { beta = [[0.1, 0.2]] }", "give lists of plain values"),
    "grid-of-algorithms": ('[algorithms.vred]\ngrid = { algorithm = ["vred", "afl"] }', "grid over 'algorithm'"),
    "train-key-at-the-top": ("last_rounds = 5\n[algorithms.fedavg]", "'last_rounds' belongs in [train]"),
    "data-key-at-the-top": ("concentration = 5\n[algorithms.fedavg]", "'concentration' belongs in [data]"),
    "seed-at-the-top": ("seed = 5\n[algorithms.fedavg]", "did you mean 'seeds'"),
    "test-of-federate": ("[data]\ntest = 0.2\n[algorithms.fedavg]", "train_fraction = 0.8"),
    "misspelt-loss": ('[train]\nlos = "mse"\n[algorithms.fedavg]', "did you mean 'loss'"),
    "momentum": ("[train]\nmomentum = 0.9\n[algorithms.fedavg]", "give it to the optimizer"),
    "unknown-table": ("[trian]\nrounds = 3\n[algorithms.fedavg]", "did you mean 'train'"),
    "unknown-option": ("[algorithms.vred]\nbeta_ = 1", "did you mean 'beta'"),
    "unknown-algorithm": ("[algorithms.verd]", "did you mean 'vred'"),
    "no-algorithm": ("[train]\nrounds = 3", "names no algorithm"),
    "not-a-table": ("data = 3\n[algorithms.fedavg]", "give a table"),
    "wrong-switch": ('noise_floor = "no"\n[algorithms.fedavg]', "noise_floor='no': give true or false"),
    "wrong-type": ('[train]\nrounds = "many"\n[algorithms.fedavg]', "rounds='many'"),
    "wrong-data": ('[data]\nname = "digts"\n[algorithms.fedavg]', "did you mean 'digits'"),
    "wrong-model": ('[model]\nname = "mpl"\n[algorithms.fedavg]', "did you mean 'mlp'"),
    "wrong-model-option": ("[model]\nhiden = [3]\n[algorithms.fedavg]", "hiden"),
    "bad-name": ('name = "a/b"\n[algorithms.fedavg]', "cannot name a folder"),
    "not-text": (b"\xff\xfe\x00", "is not UTF-8 text"),
}


@pytest.mark.parametrize("case", BAD_TOML)
def test_bad_experiment_files(case, tmp_path, evenfed):
    content, told = BAD_TOML[case]
    file = tmp_path / "bad.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused = evenfed("compare", file)
    assert refused.returncode == 2 and told in refused.stderr, refused.stderr
    assert "Traceback" not in refused.stderr and refused.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["compare", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["compare", "."], ". is a folder; give the path of an experiment's TOML file"),
        (["tune", "--trials", "3"], "--trials 3: a grid tries every combination"),
        (["compare", "--algorithms", "fedavg,semi_vered"], "did you mean 'semi_vred'"),
        (["compare", "--algorithms", "semi_vred[beta=-1]"], "beta=-1.0 is out of range"),
        (["compare", "--algorithms", ""], "no algorithm"),
        (["compare", "--rounds", "0"], "rounds=0"),
        (["compare", "--rounds", "x"], "--rounds"),
        (["compare", "--seeds", "0"], "seeds=0"),
        (["compare", "--seeds", "a,b"], "seeds="),
        (["compare", "--data", "digitz"], "did you mean 'digits'"),
        (["compare", "--set", "semi_vred"], "write part.key=value"),
        (["compare", "--algorithms", "semi_vred,semi_vred[beta=0.2]"], "are the same entry"),
        (["compare", "--set", "rounds=5"], "write train.rounds=5"),
        (["compare", "--cluster", "slrm"], "did you mean 'slurm'"),
        (["compare", "--set", "semi_vrad.beta=1"], "did you mean 'semi_vred'"),
        (["compare", "--set", "train.participation=0"], "participation=0"),
        (["compare", "--set", "train.lr=fast"], "lr='fast'"),
        (["compare", "--engine", "fast"], "unknown engine 'fast'"),
        (["compare", "--device", "cuda"], "sees no GPU"),
        (["compare", "--device", "cuda", "--workers", "2"], "sees no GPU"),
        (["compare", "--set", "model.classes=3"], "option of model mlp 'classes'"),
        (["compare", "--out", "/proc/none"], "cannot be written to"),
        (["compare", "--set", "model.hidden=[-3]"], "model.hidden=-3"),
        (["compare", "--set", "model.hidden=32"], "give a list of widths"),
        (["compare", "--data", "folder"], "data.name='folder' needs a path: set data.path"),
        (["compare", "--data", "folder", "--set", "data.path=nowhere"], "no such folder"),
        (["data", "show", "digits", "--out", "/proc/none"], "cannot be written to"),
        (["compare", "--frmat", "json"], "--format"),
        (["compair"], "Did you mean 'compare'?\n"),
        (["data", "show", "folder"], "folder needs --path DIR"),
        (["data", "show", "folder", "--path", "."], "no .npz or .parquet file in this folder"),
        (["data", "show", "digits", "--path", "."], "--path . goes with the data set `folder`"),
        (["data", "show", "digits", "--clients", "-4"], "'--clients': -4 is not in the range x>=0"),
        (["new", "x.toml", "--model", "mlpp"], "unknown model 'mlpp'; did you mean 'mlp'?"),
    ],
)
def test_bad_arguments(arguments, told, evenfed):
    refused = evenfed(*arguments)
    assert refused.stderr.count("Did you mean") < 2
    assert refused.returncode == 2 and told in refused.stderr, refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("targets", "settings", "told"),
    [
        (
            [1, 2] * 4,
            ["train.loss=binary"],
            "client north, train: targets are 1, 2 (int64); a binary loss takes 0 and 1",
        ),
        ([0.5, 2.5] * 4, ["train.loss=mse", "train.score=top1"], "score='top1' is for classes, and the targets are"),
        ([0.5, 2.5] * 4, ["train.loss=mse", "train.score=auroc"], "score='auroc' is for classes, and the targets are"),
    ],
)
def test_targets_of_a_folder_that_do_not_fit_its_loss_or_score(targets, settings, told, evenfed, tmp_path):
    folder = tmp_path / "clients"
    folder.mkdir()
    for name in ("north", "south"):
        np.savez(folder / f"{name}.npz", x=np.random.default_rng(0).random((8, 3)), y=np.array(targets))
    changes = [argument for setting in [f"data.path={folder}", *settings] for argument in ("--set", setting)]
    refused = evenfed("compare", "--data", "folder", "--rounds", 1, "--out", tmp_path / "runs", *changes)
    assert refused.returncode == 2 and told in refused.stderr, refused.stderr
    assert "Traceback" not in refused.stderr


def test_bad_input_from_a_real_process_has_no_traceback(tmp_path):
    refused = command.run("compare", "--algorithms", "fedavg,semi_vered", cwd=tmp_path)
    assert refused.returncode == 2 and refused.stderr.startswith(
        "evenfed: unknown algorithm 'semi_vered'; did you mean"
    )
    assert len(refused.stderr.splitlines()) == 1 and refused.stdout == ""


def test_in_a_folder_in_use_a_misspelt_model_is_told_first(tmp_path, evenfed):
    model = "class Net(torch.nn.Linear):\n    def __init__(self, bias=True):\n        super().__init__(64, 10)\n"
    (tmp_path / "flat_net.py").write_text(
        f"import torch\n\n{model}\n    def forward(self, x):\n        return super().forward(x.flatten(1))\n"
    )
    (tmp_path / "mine.toml").write_text('[model]\nname = "flat_net.Net"\n[algorithms.fedavg]')
    call = ["compare", "mine.toml", "--rounds", 1, "--seeds", 1, "--set", "data.clients=4"]
    assert evenfed(*call).returncode == 0
    for assignment, told in [
        ("model.name=mpl", "unknown model 'mpl'; did you mean 'mlp'"),
        ("model.name=flat_net.Nte", "model 'flat_net.Nte' cannot be imported"),
        (
            "model.bas=false",
            "unknown option of model flat_net.Net 'bas'; did you mean 'bias'? Allowed: bias, normalise",
        ),
        ("model.bias=false", "(model.bias: None there, False here); choose another folder (--out"),
        ("train.last_rounds=5", "; to average over other rounds: evenfed report runs/mine --last-rounds 5"),
    ]:
        refused = evenfed(*call, "--set", assignment)
        assert refused.returncode == 2 and told in refused.stderr, refused.stderr


def test_an_unwritable_folder(tmp_path, evenfed):
    taken = tmp_path / "runs"
    taken.write_text("a file stands here")
    refused = evenfed("compare", "--rounds", 1)
    assert refused.returncode == 2 and "cannot be written to" in refused.stderr
    assert "choose another folder (--out; in Python out=...)" in refused.stderr


@pytest.mark.parametrize("words", ["compare", "compare --workers 2", "tune"])
def test_a_start_without_the_data_leaves_no_folder(words, tmp_path, monkeypatch, evenfed):
    monkeypatch.setenv("EVENFED_DATA", str(tmp_path / "no-data"))
    monkeypatch.chdir(tmp_path)
    name, *options = words.split()
    refused = evenfed(name, "@paper-cifar10", "--quick", "--out", tmp_path / "runs", *options)
    assert refused.returncode == 2 and "data set 'cifar10' is not in" in refused.stderr
    assert not (tmp_path / "runs").exists()

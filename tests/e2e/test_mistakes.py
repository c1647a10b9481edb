"""Every mistake in a file or on the command line ends in one message, with no traceback."""

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
    "not-text": (b"\xff\xfe\x00", "is not valid TOML"),
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
        (["compare", "--algorithms", "fedavg,semi_vered"], "did you mean 'semi_vred'"),
        (["compare", "--algorithms", "semi_vred[beta=-1]"], "beta=-1.0 is out of range"),
        (["compare", "--algorithms", ""], "no algorithm"),
        (["compare", "--rounds", "0"], "rounds=0"),
        (["compare", "--rounds", "x"], "--rounds"),
        (["compare", "--seeds", "0"], "seeds=0"),
        (["compare", "--seeds", "a,b"], "seeds="),
        (["compare", "--data", "digitz"], "did you mean 'digits'"),
        (["compare", "--set", "semi_vred"], "write part.key=value"),
        (["compare", "--set", "semi_vrad.beta=1"], "did you mean 'semi_vred'"),
        (["compare", "--set", "train.participation=0"], "participation=0"),
        (["compare", "--set", "train.lr=fast"], "lr='fast'"),
        (["compare", "--engine", "fast"], "unknown engine 'fast'"),
        (["compare", "--device", "cuda"], "sees no GPU"),
        (["compare", "--out", "/proc/none"], "cannot be written to"),
        (["compare", "--set", "model.hidden=[-3]"], "model.hidden=-3"),
        (["compare", "--set", "model.hidden=32"], "give a list of widths"),
        (["compare", "--data", "folder"], "a path goes with name = 'folder' alone"),
        (["compare", "--data", "folder", "--set", "data.path=nowhere"], "no folder there"),
        (["data", "show", "digits", "--out", "/proc/none"], "cannot be written to"),
        (["compare", "--frmat", "json"], "--format"),
        (["compair"], "compare"),
    ],
)
def test_bad_arguments(arguments, told, evenfed):
    refused = evenfed(*arguments)
    assert refused.returncode == 2 and told in refused.stderr, refused.stderr
    assert "Traceback" not in refused.stderr


def test_bad_input_from_a_real_process_has_no_traceback(tmp_path):
    refused = command.run("compare", "--algorithms", "fedavg,semi_vered", cwd=tmp_path)
    assert refused.returncode == 2 and refused.stderr.startswith(
        "evenfed: unknown algorithm 'semi_vered'; did you mean"
    )
    assert len(refused.stderr.splitlines()) == 1 and refused.stdout == ""


def test_an_unwritable_folder(tmp_path, evenfed):
    taken = tmp_path / "runs"
    taken.write_text("a file stands here")
    refused = evenfed("compare", "--rounds", 1)
    assert refused.returncode == 2 and "cannot be written to" in refused.stderr

"""What trackers write, read back with the trackers' own readers; runs on disk that stop, fail and resume."""

import dataclasses
import json
import struct
import time
from pathlib import Path

import pytest

import evenfed
from evenfed.callbacks import Callback, EarlyStopping, MLflow, TensorBoard, WandB, registry, tensorboard
from evenfed.comparison.experiment import Experiment
from evenfed.comparison.runner import complete
from test_callbacks import CPU, clients, model

ROUNDS = 6


class Failing(Callback):
    """Raises an error after round 4."""

    def round(self, progress):
        if progress.round == 4:
            raise RuntimeError("no")


def experiment(**track) -> Experiment:
    table = {
        "algorithms": {"fedavg": {}, "semi_vred": {}},
        "data": {"clients": 4},
        "train": {"rounds": ROUNDS, "device": "cpu", "lr": 0.1},
        "model": {"name": "mlp", "hidden": [4]},
        "seeds": 1,
        "noise_floor": False,
        "track": track,
    }
    return Experiment.of(table, "tracked")


def carried_out(out: Path, **track):
    return complete(experiment(**track), out, lambda runs, records, engine: None)


@pytest.fixture
def failing(monkeypatch):
    monkeypatch.setitem(registry.BY_NAME, "failing", Failing)


def scalars(folder: Path, name: str) -> tuple[list[int], list[float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(folder)).Reload()
    events = log.Scalars(name)
    return [event.step for event in events], [event.value for event in events]


@pytest.mark.slow
def test_tensorboard_has_every_round_once_after_an_error_and_a_resume(tmp_path, failing):
    with pytest.raises(RuntimeError, match="no"):
        carried_out(tmp_path, tensorboard={}, failing={})
    folder = tmp_path / "tracked" / "semi_vred" / "seed-0"
    rounds = (folder / "rounds.jsonl").read_text().splitlines()
    assert len(rounds) == 4 and list(folder.glob("checkpoint-4.*"))  # the error lost nothing
    carried_out(tmp_path, tensorboard={})
    assert json.loads((folder / "header.json").read_text())["resumed_at"] == [0, 4]
    log = folder / "tensorboard"
    steps, values = scalars(log, "fairness/worst10")
    assert steps == list(range(1, ROUNDS + 1))
    recorded = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert scalars(log, "objective")[1] == pytest.approx([record["objective"] for record in recorded], rel=1e-5)

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(log), size_guidance={"histograms": 0}).Reload()
    histograms = reader.Histograms("clients/accuracy")
    assert [event.step for event in histograms] == steps and histograms[0].histogram_value.num == 4
    assert len(reader.Tags()["scalars"]) <= 12  # clients are no scalars
    assert values[-1] > 0


@pytest.mark.slow
def test_mlflow_has_every_round_once_and_tables_of_clients(tmp_path, failing):
    store = str(tmp_path / "store")
    with pytest.raises(RuntimeError):
        carried_out(tmp_path, mlflow={"store": store, "clients_every": 2}, failing={})
    carried_out(tmp_path, mlflow={"store": store, "clients_every": 2})
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=store)
    (kept,) = [each for each in client.search_experiments() if each.name == "evenfed"]
    runs = client.search_runs([kept.experiment_id])
    assert sorted(each.info.run_name for each in runs) == ["fedavg, seed 0", "semi_vred, seed 0"]
    for each in runs:
        history = client.get_metric_history(each.info.run_id, "fairness/mean")
        assert [metric.step for metric in history] == list(range(1, ROUNDS + 1))
        assert each.info.status == "FINISHED" and each.data.params["lr"] == "0.1"
        tables = [file.path for file in client.list_artifacts(each.info.run_id, "clients")]
        assert tables == ["clients/round-00002.csv", "clients/round-00004.csv", "clients/round-00006.csv"]
        lines = Path(client.download_artifacts(each.info.run_id, tables[-1])).read_text().splitlines()
        assert lines[0] == "client,loss,weight,accuracy,test_loss" and len(lines) == 1 + 4


def wandb_records(file: Path) -> list:
    """The records of an offline run's file: LevelDB's log format, in blocks of 32 KB."""
    from wandb.proto import wandb_internal_pb2

    content = file.read_bytes()
    records, parts, place = [], b"", 7  # after the file's own header
    while place + 7 <= len(content):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            records.append(record)
            parts = b""
    return records


@pytest.mark.slow
def test_names_are_text_in_trackers(tmp_path):
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    names = ["=1+1", "ward\x1b[31m", "c"]
    named = [dataclasses.replace(client, name=name) for client, name in zip(clients(), names, strict=True)]
    store = str(tmp_path / "store")
    trackers = [MLflow(store=store, clients_every=1), TensorBoard(tmp_path / "logs")]
    evenfed.train(model(), named, "semi_vred[beta=1]", rounds=1, callbacks=trackers, out=tmp_path / "out", **CPU)
    client = MlflowClient(tracking_uri=store)
    (made,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    page = Path(client.download_artifacts(made.info.run_id, "clients/round-00001.csv", str(tmp_path))).read_text()
    assert [line.partition(",")[0] for line in page.splitlines()] == ["client", "'=1+1", r"ward\x1b[31m", "c"]
    (folder,) = {path.parent for path in (tmp_path / "logs").rglob("events*")}
    log = EventAccumulator(str(folder)).Reload()
    (tag,) = log.Tags()["tensors"]
    table = log.Tensors(tag)[0].tensor_proto.string_val[0].decode()
    assert "| label | semi_vred[beta=1] |" in table
    assert tensorboard._cell("<b>|*x*\n") == r"\<b>\|\*x\*\\n"


@pytest.mark.slow
def test_wandb_offline_keeps_its_id_and_logs_no_round_twice(tmp_path, failing):
    place = str(tmp_path / "w")
    with pytest.raises(RuntimeError):
        carried_out(tmp_path, wandb={"folder": place}, failing={})
    time.sleep(1.1)  # wandb names an offline session by the second
    carried_out(tmp_path, wandb={"folder": place})
    notes = json.loads((tmp_path / "tracked" / "semi_vred" / "seed-0" / "track.json").read_text())["wandb"]
    assert notes["round"] == ROUNDS
    files = sorted(Path(place).glob(f"wandb/offline-run-*-{notes['id']}/run-*.wandb"))
    assert len(files) == 2  # the session that failed, and the one that went on
    steps = []
    for file in files:
        for record in wandb_records(file):
            if record.WhichOneof("record_type") == "history":
                items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
                steps.append(int(items["_step"]))
                assert items["clients/loss/_type"] == '"histogram"' and "fairness/worst10" in items
    assert steps == list(range(1, ROUNDS + 1))


def test_early_stopping_on_disk_stops_where_it_would_without_an_interruption(tmp_path, failing):
    stopping = {"metric": "std", "patience": 3, "min_delta": 0.9}  # nothing improves so much: round 1 is the best
    carried_out(tmp_path / "whole", early_stopping=stopping)
    with pytest.raises(RuntimeError):
        carried_out(tmp_path / "parts", early_stopping={**stopping, "patience": 5}, failing={})
    carried_out(tmp_path / "parts", early_stopping={**stopping, "patience": 5})
    for folder, stopped_at in (("whole", 4), ("parts", 6)):
        place = tmp_path / folder / "tracked" / "semi_vred" / "seed-0"
        header = json.loads((place / "header.json").read_text())
        assert header["finished"] and header["model_round"] == 1
        assert "std did not" in header["stopped"]
        assert len((place / "rounds.jsonl").read_text().splitlines()) == stopped_at
    from safetensors.torch import load_file

    models = [
        load_file(tmp_path / folder / "tracked/semi_vred/seed-0/model.safetensors") for folder in ("whole", "parts")
    ]
    for name, tensor in models[0].items():
        assert tensor.equal(models[1][name])
    with pytest.raises(evenfed.InputError, match=r"early_stopping.patience: 3 there, 7 here"):
        carried_out(tmp_path / "whole", early_stopping={**stopping, "patience": 7})


@pytest.mark.parametrize(
    ("track", "told"),
    [
        ("tensorbord", "did you mean 'tensorboard'"),
        (["tensorboard", 3], "give names such as"),
        ({"tensorboard": {"foldr": "x"}}, "did you mean 'folder'"),
        ({"tensorboard": "logs"}, r"give a table of options, e.g. \[track.tensorboard\]"),
        ({"wandb": {"mode": "offlin"}}, "did you mean 'offline'"),
    ],
)
def test_tracks_that_cannot_be(track, told):
    with pytest.raises(evenfed.InputError, match=told):
        registry.chosen(track)


def test_names_choose_callbacks():
    track = registry.chosen(["TensorBoard", "early-stopping", "mlflow", "wandb"])
    kinds = [type(each) for each in registry.by_name(track)]
    assert kinds == [TensorBoard, EarlyStopping, MLflow, WandB]


@pytest.mark.parametrize(
    ("tracker", "package"),
    [
        (TensorBoard("logs"), "torch.utils.tensorboard"),
        (MLflow(), "mlflow.tracking"),
        (WandB(), "wandb"),
    ],
)
def test_a_missing_package_names_the_extra(tracker, package, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(evenfed.InputError, match=r"pip install 'evenfed\[track\]'"):
        evenfed.train(model(), clients(), rounds=1, callbacks=tracker, **CPU)


def test_early_stopping_from_python_is_part_of_the_run_on_disk(tmp_path):
    options = {"rounds": 9, "out": tmp_path / "kept", **CPU}
    stopping = EarlyStopping("mean", patience=2, min_delta=5.0)  # nothing improves so much: round 1 is the best
    first = evenfed.train(model(), clients(), "vred", callbacks=stopping, **options)
    again = evenfed.train(model(), clients(), "vred", callbacks=EarlyStopping("mean", 2, min_delta=5.0), **options)
    for result in (first, again):
        assert len(result.records) == 3 and result.model_round == 1 and "mean did not rise" in result.stopped
    assert again.model.weight.equal(first.model.weight)
    with pytest.raises(evenfed.InputError, match=r"early_stopping.patience: 2 there, 3 here"):
        evenfed.train(model(), clients(), "vred", callbacks=EarlyStopping("mean", 3, min_delta=5.0), **options)


@pytest.mark.slow
def test_trackers_by_the_command_line_and_by_a_file(tmp_path, request):
    command = request.getfixturevalue("evenfed")
    file = tmp_path / "mine.toml"
    file.write_text(
        'track = ["tensorboard"]\nseeds = 1\nnoise_floor = false\n[algorithms.FedAvg]\n[train]\nrounds = 2\n'
        '[data]\nclients = 4\n[model]\nname = "mlp"\nhidden = [4]\n'
    )
    done = command("compare", file, "--track", "early-stopping")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "mine" / "fedavg" / "seed-0"
    assert scalars(folder / "tensorboard", "fairness/mean")[0] == [1, 2]
    assert json.loads((folder / "header.json").read_text())["config"]["early_stopping"]["patience"] == 20
    wrong = command("compare", file, "--track", "mlfow")
    assert wrong.returncode == 2 and "did you mean 'mlflow'" in wrong.stderr and "Traceback" not in wrong.stderr


class Stopping(Callback):
    """Ends a run after round 2."""

    ended = []

    def round(self, progress):
        if progress.round == 2:
            assert progress.fairness is not None and progress.model is not None
            progress.stop("enough")

    def end(self, progress):
        self.ended.append((progress.label, progress.round))


@pytest.mark.slow
def test_callbacks_on_flower(tmp_path, monkeypatch):
    from evenfed.flower import simulation
    from local_grid import LocalGrid

    monkeypatch.setattr(simulation, "simulate", lambda serve, app, clients, gpu: serve(LocalGrid(app, clients)))
    monkeypatch.setitem(registry.BY_NAME, "stopping", Stopping)
    planned = experiment(stopping={}).with_value("train.engine", "flower")
    complete(planned, tmp_path, lambda runs, records, engine: None)
    assert Stopping.ended == [("fedavg", 2), ("semi_vred", 2)]
    for label in ("fedavg", "semi_vred"):
        folder = tmp_path / "tracked" / label / "seed-0"
        header = json.loads((folder / "header.json").read_text())
        assert header["finished"] and header["stopped"] == "enough" and (folder / "model.safetensors").exists()
        assert len((folder / "rounds.jsonl").read_text().splitlines()) == 2
    complete(planned, tmp_path, lambda runs, records, engine: None)  # nothing is left to do
    assert len(Stopping.ended) == 2
    refused = experiment(early_stopping={}).with_value("train.engine", "flower")
    with pytest.raises(evenfed.InputError, match="early_stopping needs the simulator"):
        complete(refused, tmp_path / "other", lambda runs, records, engine: None)


def test_a_new_run_does_not_purge_the_log_of_an_earlier_one(tmp_path):
    pytest.importorskip("tensorboard")
    for rounds in (3, 1):
        evenfed.train(model(), clients(), rounds=rounds, callbacks=TensorBoard(tmp_path), **CPU)
    first = tmp_path / "semi_vred" / "seed-0"
    assert scalars(first, "fairness/mean")[0] == [1, 2, 3]
    assert scalars(first.with_name("seed-0-2"), "fairness/mean")[0] == [1]
    options = {**CPU, "callbacks": TensorBoard(tmp_path), "out": tmp_path / "runs"}
    for rounds in (1, 2):
        evenfed.train(model(), clients(), rounds=rounds, **options)
        time.sleep(1)  # TensorBoard's files are in order by the second
    assert scalars(first.with_name("seed-0-3"), "fairness/mean")[0] == [1, 2]
    assert not first.with_name("seed-0-4").exists()

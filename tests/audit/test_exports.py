"""Exports of other systems as they come: made by Flower, FLEXible, TensorBoard and MLflow themselves."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pandas
import pytest

import evenfed as package
from evenfed import Fairness, InputError
from evenfed.auditing.tags import Tag
from local_grid import LocalGrid

pytestmark = pytest.mark.slow
CLIENTS = 4
ROUNDS = 2


def data_of(client: int):
    """Clients differ in what the second input says."""
    rng = np.random.default_rng(client)
    x = rng.normal(size=(60, 5))
    return x, (x[:, 0] + 0.4 * client * x[:, 1] > 0).astype(float)


def trained(weights, client: int):
    x, y = data_of(client)
    for _ in range(5):
        error = 1 / (1 + np.exp(-x[:30] @ weights)) - y[:30]
        weights = weights - 0.5 * x[:30].T @ error / 30
    return weights


def accuracy_of(weights, client: int) -> float:
    x, y = data_of(client)
    return float(((x[30:] @ weights > 0) == (y[30:] > 0.5)).mean())


@pytest.fixture(scope="module")
def example():
    """The example's app is one as Flower's tutorials have it: a model's arrays come in, metrics go out."""
    path = Path(__file__).parents[2] / "examples" / "audit_flower.py"
    spec = importlib.util.spec_from_file_location("audit_flower", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flower_run(strategy, example):
    from flwr.app import ArrayRecord

    grid = LocalGrid(example.client_app(), example.CLIENTS)
    return strategy.start(grid, ArrayRecord([np.zeros(5)]), num_rounds=ROUNDS)


@pytest.fixture(scope="module")
def flower_results(example, tmp_path_factory):
    """Flower's own FedAvg, untouched but for one argument and one line; and what it should give."""
    from flwr.serverapp.strategy import FedAvg

    from evenfed.flower import each_client, recorded

    path = tmp_path_factory.mktemp("flower") / "clients.jsonl"
    result = flower_run(recorded(FedAvg(evaluate_metrics_aggr_fn=each_client), path), example)
    (weights,) = result.arrays.to_numpy_ndarrays()
    accuracies = []
    for client in range(example.CLIENTS):
        inputs, targets = example.examples_of(client)
        is_right = (inputs @ weights > 0) == targets
        accuracies.append(is_right[len(targets) // 2 :].mean())
    return path, result, accuracies


def test_a_stock_flower_run(flower_results):
    path, result, accuracies = flower_results
    for source in (result, path):
        audited = package.audit(source)
        assert audited.rows[0].last["worst"][0] == pytest.approx(min(accuracies))
        assert audited.rows[0].last["mean"][0] == pytest.approx(np.mean(accuracies))
        assert sorted(audited.first.header.clients["names"]) == list("012345")
        assert set(audited.first.header.judged_sizes) == {40} and "rounds 1 to 2" in " ".join(audited.facts)


def test_flowers_result_as_json(flower_results, evenfed, tmp_path):
    _, result, accuracies = flower_results
    by_round = {number: dict(record) for number, record in result.evaluate_metrics_clientapp.items()}
    (tmp_path / "result.json").write_text(json.dumps({"evaluate_metrics_clientapp": by_round}))
    done = evenfed("audit", "result.json", "--no-figures")
    assert done.returncode == 0 and f"{100 * min(accuracies):.1f}" in done.stdout
    assert "client from 'partition-id'" in done.stdout


def test_the_example_compares_two_strategies(example, monkeypatch, capsys):
    """Its own code, on a grid in this process: Flower's simulation takes 18 seconds of processor time."""
    monkeypatch.setattr(example, "simulate", lambda serve, app, clients: serve(LocalGrid(app, clients)))
    results = example.main(rounds=ROUNDS)
    assert [row.label for row in results.rows] == ["FedAvg", "FedAdam"]
    assert "Compared with FedAvg" in capsys.readouterr().out


def test_flowers_averages_are_refused_with_the_way_out(example):
    from flwr.serverapp.strategy import FedAvg

    averages = flower_run(FedAvg(), example)
    with pytest.raises(InputError, match=r"averages over clients.*each_client"):
        package.audit(averages)


def test_clients_that_do_not_say_who_they_are():
    from flwr.app import MetricRecord, RecordDict

    from evenfed.flower import each_client

    with pytest.raises(InputError, match="partition-id"):
        each_client([RecordDict({"metrics": MetricRecord({"accuracy": 0.5})})])
    with pytest.raises(InputError, match="do not say whose they are"):
        package.audit({"evaluate_metrics_clientapp": {"1": {"accuracy": [0.5, 0.6]}}})


def test_flowers_older_history():
    from flwr.server.history import History

    history = History()
    for number in (1, 2):
        history.add_metrics_distributed(number, {"client_0_accuracy": 0.4 + 0.1 * number, "client_1_accuracy": 0.8})
    assert package.audit(history).rows[0].last["worst"][0] == pytest.approx(0.6)
    with pytest.raises(InputError, match="averages over clients"):
        package.audit({"metrics_distributed": {"accuracy": [(1, 0.5)]}})


def test_a_run_of_flexible(evenfed, tmp_path):
    """Another framework's FedAvg; its results by client, written as JSON."""
    from flex.data import Dataset, FedDataset
    from flex.model import FlexModel
    from flex.pool import (
        FlexPool,
        collect_clients_weights,
        deploy_server_model,
        fed_avg,
        init_server_model,
        set_aggregated_weights,
    )

    def holding(weights):
        model = FlexModel()
        model["model"] = weights
        return model

    begin = init_server_model(lambda: holding(np.zeros(5)))
    deploy = deploy_server_model(lambda server: holding(server["model"]))
    collect = collect_clients_weights(lambda client: [client["model"]])

    @set_aggregated_weights
    def put(server, weights):
        server["model"] = np.asarray(weights[0])

    names = {}
    for client in range(CLIENTS):
        names[f"site-{client}"] = client

    def train(client, data):
        client["model"] = trained(client["model"], names[client.actor_id])

    def evaluate(client, data):
        return {"acc": accuracy_of(client["model"], names[client.actor_id]), "samples": len(data) // 2}

    federation = FedDataset({name: Dataset.from_array(*data_of(client)) for name, client in names.items()})
    pool = FlexPool.client_server_pool(federation, begin)
    for _ in range(ROUNDS):
        pool.servers.map(deploy, pool.clients)
        pool.clients.map(train)
        pool.aggregators.map(collect, pool.clients)
        pool.aggregators.map(fed_avg)
        pool.aggregators.map(put, pool.servers)
    pool.servers.map(deploy, pool.clients)
    results = dict(zip(pool.clients.actor_ids, pool.clients.map(evaluate), strict=True))
    (tmp_path / "flex.json").write_text(json.dumps(results))
    expected = Fairness.of([result["acc"] for result in results.values()])
    done = evenfed("audit", "flex.json", "--no-figures", "--format", "json")
    (line,) = json.loads(done.stdout)["tables"][1]["lines"]
    assert line["figures"]["worst10"]["value"] == pytest.approx(100 * expected.worst10)
    assert line["figures"]["std"]["value"] == pytest.approx(100 * expected.std)


def figure(algorithm: str, seed: int, step: int, client: int) -> float:
    return 0.3 + 0.1 * client + 0.02 * step + 0.01 * seed + 0.05 * (algorithm == "fair") * (2 - client)


def written() -> dict:
    """The mean of each algorithm over clients and seeds in the last of two rounds, and what else an audit must find."""
    means = {}
    for algorithm in ("fedavg", "fair"):
        figures = [figure(algorithm, seed, 2, client) for seed in (0, 1) for client in range(CLIENTS)]
        means[algorithm] = pytest.approx(np.mean(figures), abs=1e-6)
    return {**means, "baseline": "fedavg", "seeds": [0, 1]}


def read_from(source: Path) -> dict:
    """The same, as the audit has it."""
    results = package.audit(source)
    means = {algorithm: results[algorithm].last["mean"][0] for algorithm in ("fedavg", "fair")}
    return {**means, "baseline": results.first.baseline.label, "seeds": results.first.seeds}


@pytest.mark.parametrize("clients_in", ["tag", "folder"])
def test_tensorboards_event_files(tmp_path, clients_in):
    from torch.utils.tensorboard import SummaryWriter

    for algorithm in ("fedavg", "fair"):
        for seed in (0, 1):
            run = tmp_path / "logs" / algorithm / f"seed-{seed}"
            for client in range(CLIENTS):
                place = run / f"site-{client}" if clients_in == "folder" else run
                tag = "val/accuracy" if clients_in == "folder" else f"client_{client}/accuracy"
                with SummaryWriter(str(place), filename_suffix=f".{client}") as writer:
                    for step in (1, 2):
                        writer.add_scalar(tag, figure(algorithm, seed, step, client), step)
    assert read_from(tmp_path / "logs") == written()


@pytest.fixture(scope="module")
def mlflow_package():
    import warnings

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        import mlflow.store.tracking.dbmodels.models
        import mlflow.tracking

        yield mlflow


def test_mlflows_folder_and_table(mlflow_package, tmp_path):
    from mlflow.entities import Metric, Param

    store = mlflow_package.tracking.MlflowClient(tracking_uri=str(tmp_path / "mlruns"))
    experiment = store.create_experiment("clients", artifact_location=str(tmp_path / "artifacts"))
    table = []
    for algorithm in ("fedavg", "fair"):
        for seed in (0, 1):
            run = store.create_run(experiment).info.run_id
            metrics = []
            row = {"run_id": run, "params.algorithm": algorithm, "params.seed": str(seed)}
            for client in range(CLIENTS):
                for step in (1, 2):
                    value = figure(algorithm, seed, step, client)
                    metrics.append(Metric(f"client_{client}_accuracy", value, 0, step))
                    row[f"metrics.client_{client}_accuracy"] = value
            store.log_batch(run, metrics=metrics, params=[Param("algorithm", algorithm), Param("seed", str(seed))])
            table.append(row)
    assert read_from(tmp_path / "mlruns") == written()
    pandas.DataFrame(table).to_csv(tmp_path / "runs.csv")  # the columns of mlflow.search_runs()
    assert read_from(tmp_path / "runs.csv") == written()


@pytest.mark.filterwarnings("ignore")  # SQLAlchemy's, about MLflow
def test_mlflows_database(mlflow_package, tmp_path):
    """MLflow's own tables, made without its migrations, which take ten seconds."""
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    models = mlflow_package.store.tracking.dbmodels.models
    engine = create_engine(f"sqlite:///{tmp_path / 'mlflow.db'}")
    kinds = (models.SqlExperiment, models.SqlRun, models.SqlParam, models.SqlMetric)
    models.Base.metadata.create_all(engine, tables=[kind.__table__ for kind in kinds])
    with Session(engine) as session:
        for algorithm in ("fedavg", "fair"):
            for seed in (0, 1):
                run = f"{algorithm}-{seed}"
                session.add(models.SqlRun(run_uuid=run, name=run, lifecycle_stage="active"))
                session.add(models.SqlParam(run_uuid=run, key="algorithm", value=algorithm))
                session.add(models.SqlParam(run_uuid=run, key="seed", value=str(seed)))
                for client in range(CLIENTS):
                    for step in (1, 2):
                        value = figure(algorithm, seed, step, client)
                        key = f"accuracy/client_{client}"
                        session.add(models.SqlMetric(run_uuid=run, key=key, value=value, step=step, timestamp=step))
        session.commit()
    engine.dispose()
    assert read_from(tmp_path / "mlflow.db") == written()


def test_names_in_tags():
    assert Tag.of("accuracy/client_12") == Tag("client_12", "accuracy")
    assert Tag.of("client_0_accuracy") == Tag("client_0", "accuracy")
    assert Tag.of("clients/berlin/val_acc") == Tag("clients/berlin", "val_acc")
    assert Tag.of("hospital 3 | AUC") == Tag("hospital 3", "AUC")
    assert Tag.of("train/loss") is None


def test_the_page_serves_audited_results(tmp_path):
    """The same page as of evenfed's own runs; how it works in a browser is tested in tests/report."""
    from evenfed.report.files import write_page

    rows = ["client,method,seed,acc"]
    for method, gain in (("plain", 0.0), ("<script>alert(1)</script>", 0.1)):
        for seed in range(3):
            rows += [
                f"<b>{k}</b>,{method},{seed},{0.3 + 0.05 * k + gain * (1 + 0.001 * seed) + 0.001 * seed * k}"
                for k in range(8)
            ]
    table = tmp_path / "clients.csv"
    table.write_text("\n".join(rows))
    results = package.audit(table, baseline="plain")
    (document,) = results.documents()
    page = write_page(document, tmp_path / "report.html").read_text()
    assert "<script>alert(1)" not in page and "<b>0</b>" not in page
    assert "serves the worst-served clients best" in page and "10.0 points" in page
    assert f"evenfed audit {table} --baseline plain" in page
    assert "SHA-256" in page and "evenfed report" not in page
    assert "report.md and tables.csv, next to this page.</noscript>" in page

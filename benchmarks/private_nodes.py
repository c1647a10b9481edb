"""Private rounds over real SuperNodes, as docs/deploy.md sets them up: what comes out, and what a killed one does.

    python benchmarks/private_nodes.py           # begun again, it goes on with the runs that are left

Three sites, then four: SuperLink, proxy, SuperNodes and SuperExecs are processes of this machine, with TLS, registered
keys and a signed app. Apps are forked from a process that has loaded torch, so seconds are not those of real sites.
Models are compared with plain rounds on a grid inside this process, over the same clients and seeds. A site is killed
by `kill -9` of its SuperNode while it works at a stage, and started again as its unit would.
"""

import dataclasses
import json
import logging
import re
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import Message, MessageType
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping
from safetensors.torch import load_file

import page
from evenfed.comparison.storage.provenance import provenance
from evenfed.flower import FairStrategy
from evenfed.flower.server import initial_arrays
from evenfed.simulate.problem import initial_model

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from deployment import Deployment, commands
from local_grid import LocalGrid

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "private_nodes.json"
UNFINISHED = RESULT.with_suffix(".unfinished.json")
PAGE = ROOT / "docs" / "private.md"
Model = dict[str, torch.Tensor]  # by name
TIMEOUT = 30.0  # seconds until a dead site is given up
OPTIONS: dict[str, Any] = {"lr": 0.1, "batch_size": 8, "local_epochs": 2, "timeout": TIMEOUT}
TASK = """
import torch
from evenfed import Client

def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

def data(context):
    site = context.node_config["partition-id"]
    draw, size = torch.Generator().manual_seed(site), 12 * (site + 1)
    inputs, targets = torch.randn(size, 4, generator=draw), torch.randint(0, 3, (size,), generator=draw)
    return Client(train=(inputs, targets), test=(inputs[:7], targets[:7]), name=f"ward-{site}")
"""
CLIENT = """
import time
from pathlib import Path

from evenfed.flower import client_app
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM
from wards.task import data, model

def clipping(message, context, call_next):
    "Where the server's wrapper asks for it."
    if KEY_CLIPPING_NORM in message.content["config"]:
        return fixedclipping_mod(message, context, call_next)
    return call_next(message, context)

site = client_app(model, data, mods=[clipping], device="cpu")

class Stopping(ClientApp):
    "Stops where the file `stop` says, to be killed there."

    def __call__(self, message, context):
        records = message.content.config_records
        parts = records.get("evenfed.masks", {})
        if "masked" in parts:
            last = f"{records['private']['kind']} {records['config']['evenfed.index']}"
            Path("last").write_text(last)
        stop = Path("stop")
        if parts and stop.exists():
            part, sum_and_round = stop.read_text().split(maxsplit=1)
            if part in parts and sum_and_round == Path("last").read_text():
                stop.unlink()
                Path("stopped").touch()
                time.sleep(900)
        return site(message, context)

app = Stopping()
"""
SERVER = """
from evenfed.flower import server_app
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping
from wards.task import model

app = ServerApp()

@app.main()
def main(grid, context):
    norm, noise, sites = (context.run_config[name] for name in ("norm", "noise", "clipped"))

    def wrap(strategy):
        return DifferentialPrivacyClientSideFixedClipping(strategy, noise, norm, num_sampled_clients=sites)

    server_app(model, wrap=wrap if norm else None)(grid, context)
"""
SETTINGS = """
[tool.flwr.app.config]
norm = 0.0
noise = 0.0
clipped = 0

[tool.flwr.app.config.evenfed]
algorithm = ""
rounds = 0
lr = 0.0
batch_size = 0
local_epochs = 0
timeout = 0.0
private = false
ordered = true
out = ""
sites = "/etc/flower/sites.toml"
"""


@dataclass(frozen=True)
class Case:
    """A run, and at which stage the last site is killed."""

    title: str
    sites: int
    algorithm: str
    rounds: int
    norm: float = 0.0  # to which clients clip their updates; 0: not at all
    noise: float = 0.0  # the server's multiplier
    killed_at: str = ""


CASES = (
    Case("masked sums, Semi-VRed", 3, "semi_vred", 3),
    Case("the same, updates clipped to 0.05", 3, "semi_vred", 3, norm=0.05),
    Case("the same, and noise with multiplier 0.5", 3, "semi_vred", 3, norm=0.05, noise=0.5),
    Case("masked sums, FedAvg, a site killed as it masks its update", 3, "fedavg", 6, killed_at="masked update 1"),
    Case("masked sums, FedAvg, a site killed as it masks its update", 4, "fedavg", 5, killed_at="masked update 1"),
    Case("masked sums, FedAvg, a site killed as it helps to unmask", 4, "fedavg", 5, killed_at="opened update 1"),
)


class Trained(NamedTuple):
    """What a run has left."""

    model: Model
    records: list[dict[str, Any]]  # of its rounds
    log: str
    seconds: float


class Wards:
    """A deployment of so many sites, and its app. SuperNodes that end are started again, as by their units."""

    def __init__(self, folder: Path, sites: int) -> None:
        self.sites = sites
        self.deployment = Deployment(folder, sites, traced=False)
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep_nodes, daemon=True)

    def __enter__(self) -> "Wards":
        deployment = self.deployment
        try:
            deployment.begin()
        except BaseException:
            deployment.end()
            raise
        app = deployment.folder / "wards"
        texts = {"task": TASK, "client_app": CLIENT, "server_app": SERVER}
        for name, text in texts.items():
            (app / "wards" / f"{name}.py").write_text(text)
        project = app / "pyproject.toml"
        before, _, _ = project.read_text().partition("# Set any option")
        project.write_text(before + deployment.server.moved(SETTINGS))
        (sign,) = (block for block in commands() if "flower sign" in block)
        deployment.done(sign)
        self._keeper.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._keeper.join()
        self.deployment.end()

    def _keep_nodes(self) -> None:
        """`Restart=always`, `RestartSec=15`."""
        while not self._over.wait(15):
            for site in range(self.sites):
                if self.deployment.running[f"node-{site}"].process.poll() is not None:
                    self.deployment.start_node(site)

    def train(self, name: str, case: Case) -> Trained:
        """A private run from its beginning to its end."""
        out = f"/var/lib/flower/runs/{name}"
        chosen: dict[str, Any] = {"norm": case.norm, "noise": case.noise, "clipped": case.sites}
        own = {"algorithm": case.algorithm, "rounds": case.rounds, "private": True, "out": out}
        for key, value in {**OPTIONS, **own}.items():
            chosen[f"evenfed.{key}"] = value
        config = " ".join(f"{key}={_toml(value)}" for key, value in chosen.items())
        began = time.perf_counter()
        run = self.deployment.typed(name, f'flwr run wards ours --stream --run-config "{config}"')
        if case.killed_at:
            last = case.sites - 1
            place = self.deployment.folder / f"ward-{last}" / "var" / "lib" / "flower-app"
            (place / "stop").write_text(case.killed_at)
            run.reaches((place / "stopped").exists)
            (place / "stopped").unlink()
            self.deployment.running[f"node-{last}"].kill()
        assert run.ended() == 0, run.told()
        (folder,) = (self.deployment.server.place / out[1:]).glob("*/seed-0")
        return Trained(
            model=load_file(folder / "model.safetensors"),
            records=[json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()],
            log=re.sub(r"\x1b\[\d+m", "", run.told()),
            seconds=time.perf_counter() - began,
        )


def _toml(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value).lower()


def plain(case: Case, missing: dict[int, list[int]]) -> Model:
    """The model of plain rounds over the same clients, without noise; `missing`: who does not train, by round."""
    app: dict[str, Any] = {}
    source = CLIENT.partition("class Stopping")[0].replace("from wards.task import data, model", TASK)
    exec(source, app)
    asked: dict[int, int] = {}  # client -> rounds

    def spoil(reply: Message, client: int) -> Message | None:
        if reply.metadata.message_type != MessageType.TRAIN:
            return reply
        index = asked.get(client, 0)
        asked[client] = index + 1
        return None if client in missing.get(index, []) else reply

    options = {**OPTIONS, "timeout": 0.1, "ordered": True, "rest": 0}
    strategy = FairStrategy(case.algorithm, rounds=case.rounds, **options)
    wrapped = None
    if case.norm:
        wrapped = DifferentialPrivacyClientSideFixedClipping(strategy, 0.0, case.norm, num_sampled_clients=case.sites)
    start = initial_arrays(initial_model(app["model"], 0))
    grid = LocalGrid(app["site"], case.sites, spoil=spoil)
    result = strategy.start(grid, start, wrapped=wrapped)
    return dict(result.arrays.to_torch_state_dict())


def differences(model: Model, other: Model) -> torch.Tensor:
    """Of all parameters."""
    parts = []
    for name, value in model.items():
        parts.append((value - other[name]).flatten())
    return torch.cat(parts)


def judged(case: Case, trained: Trained) -> dict[str, Any]:
    """A run as it is written down."""
    absent = {}
    for record in trained.records:  # in a round that was skipped, nobody counts
        absent[record["index"]] = list(range(case.sites)) if record["skipped"] else record["dropped"]
    wanted = plain(case, absent)
    difference = differences(trained.model, wanted)
    if case.norm:
        unclipped = plain(dataclasses.replace(case, norm=0.0), absent)
        assert differences(wanted, unclipped).abs().max() > 1e-3, "nothing was clipped"
    rounds = []
    for record in trained.records:
        rounds.append({key: record.get(key) for key in ("dropped", "skipped", "reason")})
    return {
        "sites": case.sites,
        "title": case.title,
        "rounds": rounds,
        "largest_difference": float(difference.abs().max()),
        "root_mean_square": float(difference.square().mean().sqrt()),
        "stages": re.findall(r"round \d+, private: .*", trained.log),
        "seconds": trained.seconds,
    }


def table(runs: list[dict[str, Any]]) -> str:
    """A line per run, in the order of the cases."""
    order = [(case.sites, case.title) for case in CASES]
    lines = ["| sites | run | rounds | largest difference of a parameter from plain rounds |", "|---|---|---|---|"]
    for run in sorted(runs, key=lambda run: order.index((run["sites"], run["title"]))):
        difference = f"{run['largest_difference']:.0e}"
        lines.append(f"| {run['sites']} | {run['title']} | {_in_words(run['rounds'])} | {difference} |")
    return "\n".join(lines)


def _in_words(rounds: list[dict[str, Any]]) -> str:
    """As "3 applied", with those that were not and those without a site."""
    skipped = [str(number) for number, round in enumerate(rounds, 1) if round["skipped"]]
    without = [str(number) for number, round in enumerate(rounds, 1) if round["dropped"] and not round["skipped"]]
    parts = [f"{len(rounds) - len(skipped)} of {len(rounds)} applied"]
    if skipped:
        parts.append(f"skipped: {', '.join(skipped)}")
    if without:
        parts.append(f"without the site: {', '.join(without)}")
    return "; ".join(parts)


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *received: sys.exit(1))  # so that the processes end with this one
    about = provenance()
    about["versions"]["flwr"] = version("flwr")
    noted: dict[str, Any] = {"runs": []}
    if UNFINISHED.exists():
        noted = json.loads(UNFINISHED.read_text())
    done = {(run["sites"], run["title"]) for run in noted["runs"]}
    for sites in (3, 4):
        cases = [case for case in CASES if case.sites == sites and (sites, case.title) not in done]
        if not cases:
            continue
        folder = tempfile.TemporaryDirectory(prefix="evenfed-wards-", ignore_cleanup_errors=True)
        with folder as place, Wards(Path(place), sites) as wards:
            for number, case in enumerate(cases):
                run = {**judged(case, wards.train(f"run-{number}", case)), **about}
                noted["runs"].append(run)
                print(json.dumps(run, indent=1), flush=True)
                UNFINISHED.write_text(json.dumps(noted, indent=1) + "\n")
    UNFINISHED.replace(RESULT)
    page.put("private nodes", table(noted["runs"]), PAGE)


if __name__ == "__main__":
    main()

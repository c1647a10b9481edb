"""Peak memory of a Flower server that aggregates replies of a 10-million-parameter model: evenfed and stock FedAvg.

    python benchmarks/flower_memory.py            # all of it, in 5 to 15 minutes; at most 9 GB
    python benchmarks/flower_memory.py "one trip, VRed"       # some servers; the others' figures stay as they are

Each figure is a process of its own. Replies come from a Grid that makes one when it is pulled, as the SuperLink
hands over what waits on its disk; so the server app alone is measured. Stock FedAvg is run as far as 9 GB allow.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import page

HERE = Path(__file__).parent
PARTS, SIZE = 10, 1_000_000
REPLIES = {
    "evenfed": (10, 100, 1000),
    "Fair": (10, 50, 100),
    "one trip, FedAvg": (10, 50),
    "one trip, VRed": (10, 50),
    "one trip, Semi-VRed": (10, 50),
    "stock FedAvg": (10, 50, 100),
}
ONE_TRIP = {"one trip, FedAvg": "fedavg", "one trip, VRed": "vred", "one trip, Semi-VRed": "semi_vred"}
LIMIT_GB = 9


def serve(system: str, count: int) -> dict[str, float]:
    """One round with `count` replies in this process."""
    resource.setrlimit(resource.RLIMIT_AS, (2 * LIMIT_GB << 30, -1))
    import numpy as np
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    names = [f"part{k}" for k in range(PARTS)]
    start = ArrayRecord({name: Array(np.zeros(SIZE, dtype=np.float32)) for name in names})
    trained = Array(np.full(SIZE, 0.5, dtype=np.float32))

    def answer(order: Message) -> Message:
        node, kind = order.metadata.dst_node_id, order.metadata.message_type
        if kind == "query.describe":
            told = {"partition-id": node, "num-partitions": count, "name": str(node), "train": 10, "test": 0}
            content = {"config": ConfigRecord({**told, "parameters": names, "buffers": list[str]()})}
        elif kind == "query.loss":
            content = {"metrics": MetricRecord({"loss": 1.0 + node / count})}
        else:
            fresh = {n: Array("float32", (SIZE,), trained.stype, bytes(bytearray(trained.data))) for n in names}
            loss = 1.0 + node / count
            metrics = MetricRecord({"num-examples": 10, "loss": loss, "train_loss": loss})
            content = {"arrays": ArrayRecord(fresh), "metrics": metrics}
        return Message(RecordDict(content), reply_to=order)

    class Replies(Grid):
        """Answers an order when its reply is pulled."""

        def __init__(self) -> None:
            self.waiting: dict[str, Message] = {}

        def get_node_ids(self) -> Iterable[int]:
            return range(count)

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            ids = []
            for message in messages:
                message.metadata.__dict__["_message_id"] = str(uuid4())
                ids.append(message.metadata.message_id)
                self.waiting[ids[-1]] = message
            return ids

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            return [answer(self.waiting.pop(i)) for i in message_ids]

        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
            return self.pull_messages(self.push_messages(messages))  # a list of all, as Flower's grids return it

        set_run = run = create_message = None  # of no use here

    strategy = _strategy(system, count)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    strategy.start(Replies(), start, num_rounds=1)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"replies": count, "peak_mib": after / 1024, "above_start_mib": (after - before) / 1024}


def _strategy(system: str, count: int) -> object:
    from flwr.serverapp.strategy import FedAvg

    from evenfed.flower import Fair, FairStrategy

    usual = {"fraction_evaluate": 0.0, "min_available_nodes": count}
    if system == "evenfed":
        return FairStrategy("semi_vred")
    if system == "Fair":
        return Fair("semi_vred", trips=1, measured_before=True, **usual)
    if system in ONE_TRIP:
        return FairStrategy(ONE_TRIP[system], trips=1, guard="off")
    return FedAvg(**usual)


def main(systems: list[str]) -> None:
    """The figures of these servers, each in a process of its own."""
    from evenfed.comparison.storage.provenance import provenance

    path = HERE / "results" / "flower_memory.json"
    earlier = json.loads(path.read_text())["systems"] if path.exists() else {}
    found: dict[str, list[dict[str, float]]] = {system: earlier.get(system, []) for system in REPLIES}
    for system in systems:
        found[system] = []
        for count in REPLIES[system]:
            told = subprocess.run(
                [sys.executable, __file__, "--one", system, str(count)], capture_output=True, text=True, check=True
            )
            found[system].append(json.loads(told.stdout.splitlines()[-1]))
            print(system, found[system][-1])
    about = provenance()
    about["versions"]["flwr"] = version("flwr")
    written = {"parameters": PARTS * SIZE, "reply_mib": PARTS * SIZE * 4 / 2**20, **about, "systems": found}
    path.write_text(json.dumps(written, indent=1) + "\n")
    _into_readme(found)


def _into_readme(found: dict[str, list[dict[str, float]]]) -> None:
    """The table of benchmarks/README.md."""
    lines = ["| server | replies | peak, MiB | above its start, MiB |", "|---|---|---|---|"]
    for system, rows in found.items():
        lines += [f"| {system} | {r['replies']} | {r['peak_mib']:.0f} | {r['above_start_mib']:.0f} |" for r in rows]
    page.put("flower memory", "\n".join(lines))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--one", nargs=2)
    arguments.add_argument("systems", nargs="*", choices=[*REPLIES, []])
    given = arguments.parse_args()
    if given.one:
        print(json.dumps(serve(given.one[0], int(given.one[1]))))
    else:
        main(given.systems or list(REPLIES))

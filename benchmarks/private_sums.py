"""Error, size and time of one masked sum (docs/private.md): python benchmarks/private_sums.py

Every client holds a random vector of updates (normal, deviation 0.01), weighed by 1/m, and masks it; the sum is opened,
and compared with the same sum in float64. Keys are made for four sums, as many as a round of Semi-VRed has. No network
and no training: the protocol alone. Times are processor seconds.
"""

import time
from collections.abc import Iterable

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from evenfed.flower.secagg.masking_client import MASKED, PROTOCOL, respond
from evenfed.flower.secagg.masking_server import ProtocolMessenger, open_session

SUMS = 4


def measure(clients: int, entries: int) -> str:
    draw = np.random.default_rng(clients)
    plain = {node: draw.normal(0, 0.01, entries) / clients for node in range(1, clients + 1)}
    contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in plain}
    spent, size = 0.0, 0

    def ask(orders: Iterable[Message]) -> Iterable[Message]:
        nonlocal spent, size
        for order in orders:
            node, began = order.metadata.dst_node_id, time.process_time()
            reply = respond(order, contexts[node], lambda m, c, node=node: ([], plain[node]))
            spent += time.process_time() - began
            size = max(size, len(reply.content[PROTOCOL].get(MASKED, b"")))
            yield reply

    began = time.process_time()
    courier = ProtocolMessenger(ask)
    session = open_session(list(plain), SUMS, courier)
    keys_of_client = spent / clients
    keys_of_server = time.process_time() - began - spent
    began, spent = time.process_time(), 0.0
    running = session.sum(plain, numbers=0, size=entries)
    courier.exchange("masked", running.wanted(), running.take)
    courier.exchange("unmasking", running.shares_wanted(), running.take_shares)
    _, total = running.opened("unmasking")
    error = total - np.sum(list(plain.values()), axis=0)
    server = time.process_time() - began - spent
    return (
        f"| {clients} | {entries:,} | {np.abs(error).max():.1e} | {size / entries:.0f} | {keys_of_client:.2f} | "
        f"{keys_of_server:.2f} | {spent / clients:.2f} | {server:.2f} |"
    )


if __name__ == "__main__":
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    print(
        "| clients | entries | largest error | bytes per entry | keys: s per client | s on the server | sum: ", end=""
    )
    print("| sum: s per client | s on the server |\n|---|---|---|---|---|---|---|---|")
    for clients, entries in ((4, 100_000), (10, 1_000_000), (50, 100_000)):
        print(measure(clients, entries), flush=True)

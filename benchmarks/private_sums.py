"""Error, size and time of one masked sum (docs/private.md): python benchmarks/private_sums.py

Every client holds a random vector of updates (normal, deviation 0.01), weighed by 1/m; Flower's mod masks it, the
sum is opened, and compared with the same sum in float64. No network and no training: the protocol alone.
"""

import time
from collections.abc import Iterable

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from evenfed.flower import secure


def measure(clients: int, entries: int) -> str:
    draw = np.random.default_rng(clients)
    plain = {node: draw.normal(0, 0.01, entries) / clients for node in range(1, clients + 1)}
    contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in plain}
    spent, size = 0.0, 0

    def ask(orders: Iterable[Message]) -> Iterable[Message]:
        nonlocal spent
        for order in orders:
            node, began = order.metadata.dst_node_id, time.perf_counter()
            reply = secure.respond(order, contexts[node], lambda m, c, node=node: plain[node])
            spent += time.perf_counter() - began
            yield reply

    began = time.perf_counter()
    run = secure.SecureSum(list(plain), entries, ask)
    run.open()
    for reply in ask(run.tasks(dict.fromkeys(plain, RecordDict()))):
        size = sum(map(len, reply.content.config_records[secure.PROTOCOL]["masked_params"]))
        run.add(reply)
    error = run.close() - np.sum(list(plain.values()), axis=0)
    server = time.perf_counter() - began - spent
    return (
        f"{clients:>7} clients, {entries:>9,} entries: largest error {np.abs(error).max():.1e}, rms {error.std():.1e}; "
        f"{size / entries:.0f} B an entry; {spent / clients:.2f} s a client, {server:.2f} s the server"
    )


if __name__ == "__main__":
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    for clients, entries in ((4, 100_000), (10, 100_000), (10, 1_000_000), (50, 100_000)):
        print(measure(clients, entries), flush=True)

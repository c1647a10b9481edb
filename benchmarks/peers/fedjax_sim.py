"""Time FedAvg rounds of the shared workload in FedJAX (its own FedAvg, jit backend of for_each_client)."""

import time

import fedjax
import jax
import numpy as np
import work
from fedjax.algorithms import fed_avg
from fedjax.version import __version__

Params = list[jax.Array]


def loss(params: Params, batch: dict[str, jax.Array], rng: jax.Array) -> jax.Array:
    """Return the mean cross entropy of a batch."""
    w1, b1, w2, b2 = params
    logits = jax.nn.relu(batch["x"] @ w1.T + b1) @ w2.T + b2
    return -jax.nn.log_softmax(logits)[jax.numpy.arange(len(logits)), batch["y"]].mean()


def main() -> None:
    """Run the rounds and report."""
    rounds, warmup = work.parse_rounds()
    keys = jax.random.split(jax.random.PRNGKey(0), work.CLIENTS)
    clients = [
        (client, fedjax.ClientDataset({"x": x, "y": y}), key)
        for client, ((x, y), key) in enumerate(zip(work.load_clients(), keys, strict=True))
    ]
    with fedjax.for_each_client_backend("jit"):
        algorithm = fed_avg.federated_averaging(
            jax.grad(loss),
            client_optimizer=fedjax.optimizers.sgd(work.LEARNING_RATE),
            server_optimizer=fedjax.optimizers.sgd(1.0),
            client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(work.BATCH, skip_shuffle=True),
        )
    state, ends = algorithm.init([jax.numpy.asarray(value) for value in work.initial_parameters()]), []
    for _ in range(warmup + rounds):
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        ends.append(time.perf_counter())
    work.report("fedjax", __version__, ends, warmup, [np.asarray(value) for value in state.params])


if __name__ == "__main__":
    main()

"""pfl's CIFAR-10 IID benchmark in FedJAX: its own FedAvg, jit backend of for_each_client."""

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
import task as iid
from fedjax.algorithms import fed_avg
from fedjax.version import __version__
from jax import lax

Params = list[jax.Array]


def outputs(params: Params, x: jax.Array, rng: jax.Array | None) -> jax.Array:
    """The CNN's class scores; with `rng` its dropout layers are on."""
    w1, b1, w2, b2, w3, b3, w4, b4 = params
    x = jax.nn.relu(lax.conv(x, w1, (1, 1), "VALID") + b1[:, None, None])
    x = jax.nn.relu(lax.conv(x, w2, (1, 1), "VALID") + b2[:, None, None])
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    first = second = None
    if rng is not None:
        first, second = jax.random.split(rng)
    x = dropout(x, 0.25, first).reshape(len(x), -1)
    x = dropout(jax.nn.relu(x @ w3.T + b3), 0.5, second)
    return x @ w4.T + b4


def dropout(x: jax.Array, rate: float, rng: jax.Array | None) -> jax.Array:
    if rng is None:
        return x
    kept = jax.random.bernoulli(rng, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), 0)


def loss(params: Params, batch: dict[str, jax.Array], rng: jax.Array) -> jax.Array:
    """The mean cross entropy of a batch."""
    scores = jax.nn.log_softmax(outputs(params, batch["x"], rng))
    return -scores[jnp.arange(len(scores)), batch["y"]].mean()


def main() -> None:
    """Run the rounds and report."""
    clock = iid.Clock()
    task = iid.Task.parse()
    data = iid.load(task)
    users = []
    for x, y in data.users:
        users.append(fedjax.ClientDataset({"x": x.numpy(), "y": y.numpy()}))
    with fedjax.for_each_client_backend("jit"):
        algorithm = fed_avg.federated_averaging(
            jax.grad(loss),
            client_optimizer=fedjax.optimizers.sgd(task.lr),
            server_optimizer=fedjax.optimizers.sgd(1.0),
            client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(task.batch, num_epochs=1),
        )
    parameters = [jnp.asarray(value.detach().numpy()) for value in iid.initial_model().parameters()]
    state = algorithm.init(parameters)
    predict = jax.jit(lambda params, x: outputs(params, x, None).argmax(1))
    test_images, test_labels = (tensor.numpy() for tensor in data.test)
    draw = np.random.default_rng(0)
    accuracies = {}
    for done in range(1, task.rounds + 1):
        cohort = draw.choice(len(users), task.cohort, replace=False)
        keys = jax.random.split(jax.random.PRNGKey(done), task.cohort)
        clients = [(int(user), users[user], key) for user, key in zip(cohort, keys, strict=True)]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        if done % task.test_every == 0:
            predicted = np.asarray(predict(state.params, test_images))
            accuracies[done] = round(float((predicted == test_labels).mean()), 4)
        clock.tick()
    iid.report("fedjax", __version__, task, len(users), clock, accuracies)


if __name__ == "__main__":
    main()

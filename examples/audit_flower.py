"""Audit two stock strategies of Flower: who is served badly, who gains and who pays.

    python examples/audit_flower.py

Flower's own FedAvg and FedAdam train a small model in Flower's simulation; nothing of evenfed trains. One argument,
`each_client`, keeps what Flower would average: every client's accuracy in every round.
"""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg

import evenfed
from evenfed.flower import each_client
from evenfed.flower.simulation import simulate

CLIENTS = 6
EXAMPLES = 80  # per client, half of them for testing


def examples_of(client: int) -> tuple[np.ndarray, np.ndarray]:
    """The last client's labels follow another input than the others'."""
    generator = np.random.default_rng(client)
    inputs = generator.normal(size=(EXAMPLES, 5))
    deciding = 1 if client == CLIENTS - 1 else 0
    return inputs, inputs[:, deciding] + 0.3 * inputs[:, 2] > 0


def client_app() -> ClientApp:
    """Logistic regression, as a Flower app without anything of evenfed."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        (weights,) = message.content["arrays"].to_numpy_ndarrays()
        inputs, targets = examples_of(int(context.node_config["partition-id"]))
        inputs = inputs[: EXAMPLES // 2]
        targets = targets[: EXAMPLES // 2]
        for _ in range(10):
            probabilities = 1 / (1 + np.exp(-inputs @ weights))
            weights = weights - 0.5 * inputs.T @ (probabilities - targets) / len(targets)
        metrics = MetricRecord({"num-examples": len(targets)})
        return Message(RecordDict({"arrays": ArrayRecord([weights]), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        (weights,) = message.content["arrays"].to_numpy_ndarrays()
        client = int(context.node_config["partition-id"])
        inputs, targets = examples_of(client)
        is_right = (inputs @ weights > 0) == targets
        test = is_right[EXAMPLES // 2 :]
        metrics = {"accuracy": float(test.mean()), "num-examples": len(test), "partition-id": client}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def main(rounds: int = 10) -> evenfed.Audit:
    rows = []

    def serve(grid: Grid) -> None:
        """Both strategies, one after the other; a row per strategy, round and client."""
        for strategy in (FedAvg, FedAdam):
            stock = strategy(evaluate_metrics_aggr_fn=each_client)
            result = stock.start(grid, ArrayRecord([np.zeros(5)]), num_rounds=rounds)
            for number, metrics in result.evaluate_metrics_clientapp.items():
                for k, client in enumerate(metrics["partition-id"]):
                    accuracy = metrics["accuracy"][k]
                    rows.append({"strategy": strategy.__name__, "round": number, "client": client, "acc": accuracy})

    simulate(serve, client_app(), CLIENTS)
    results = evenfed.audit(rows)
    print(results)
    return results


if __name__ == "__main__":
    main()

"""A Flower client as people write it, which knows nothing of evenfed: a linear model, full-batch steps."""

import copy
import random

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from evenfed.flower import Fair, extend
from local_grid import LocalGrid
from worked_example import federation

SIZES = (9, 4, 17, 6)
LR = 0.1
STEPS = 2
CLIENTS = federation(sizes=SIZES)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 3))


NET = model()


def received(message):
    net = copy.deepcopy(NET)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net


def data(context):
    return CLIENTS[context.node_config["partition-id"]]


def train(message, context):
    net = received(message)
    inputs, targets = data(context).train
    optimizer = torch.optim.SGD(net.parameters(), lr=message.content["config"]["lr"])
    running_loss = 0.0
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), targets)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    metrics = MetricRecord({"train_loss": running_loss / STEPS, "num-examples": len(targets)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


def evaluate(message, context):
    net = received(message)
    inputs, targets = data(context).test
    with torch.no_grad():
        outputs = net(inputs)
    accuracy = float((outputs.argmax(1) == targets).double().mean())
    loss = float(nn.functional.cross_entropy(outputs, targets))
    metrics = MetricRecord({"eval_acc": accuracy, "eval_loss": loss, "num-examples": len(targets)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def app_of(train=train, mods=()):
    app = ClientApp(mods=list(mods))
    app.train()(train)
    app.evaluate()(evaluate)
    return app


def extended():
    return extend(app_of(), model=model, data=data, device="cpu")


def run(strategy, app=None, rounds=2, **grid):
    """Flower's result, and the grid."""
    random.seed(0)  # FedAvg draws clients with it, in an order of its own
    made = LocalGrid(app or app_of(), len(SIZES), **grid)
    start = ArrayRecord(model().state_dict())
    return strategy.start(made, start, rounds, 1.0, ConfigRecord({"lr": LR})), made


def fair(algorithm="semi_vred[beta=1]", **options):
    return Fair(algorithm, local_steps=STEPS, **{"guard": "off", **options})

"""The client: in the shape of Flower's PyTorch quickstart."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart import task

app = ClientApp()


def load(message: Message, context: Context):
    """The model as received, and this client's loaders."""
    model = task.Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    node = context.node_config
    loaders = task.load_data(node["partition-id"], node["num-partitions"], context.run_config["batch-size"])
    return model, *loaders


@app.train()
def train(message: Message, context: Context) -> Message:
    model, trainloader, _ = load(message, context)
    lr = message.content["config"]["lr"]
    train_loss = task.train(model, trainloader, context.run_config["local-epochs"], lr)
    metrics = MetricRecord({"train_loss": train_loss, "num-examples": len(trainloader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model, _, testloader = load(message, context)
    eval_loss, eval_acc = task.test(model, testloader)
    metrics = {"eval_loss": eval_loss, "eval_acc": eval_acc, "num-examples": len(testloader.dataset)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

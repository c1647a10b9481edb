"""A server app and its sites in one process, until the server sends out the first model."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.task_identity import TaskIdentity

from ...core.errors import InputError
from ..wire import Fields, Values

LOOKS = 5  # at who is connected, after which a server that has sent nothing waits for others


class FirstModelSent(BaseException):
    """Ends the server app: here is what it wanted to send."""

    def __init__(self, message: Message) -> None:
        super().__init__()
        self.message = message


class DryRun(Grid):
    """Hands messages to the client app at once, except one that `is_wanted`, which ends the server app."""

    def __init__(self, app: ClientApp, contexts: Mapping[int, Context], is_wanted: Callable[[Message], bool]) -> None:
        self.app = app
        self.contexts = contexts
        self.is_wanted = is_wanted
        self.replies: dict[str, Message] = {}
        self.looks = 0

    def get_node_ids(self) -> Iterable[int]:
        self.looks += 1
        if self.looks > LOOKS:
            sites = len(self.contexts)
            raise InputError(f"the server waits for more than {sites} sites; give their number by --sites")
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            self.looks = 0
            if self.is_wanted(message):
                raise FirstModelSent(message)
            name = str(uuid4())
            message.metadata.__dict__["_message_id"] = name
            self.replies[name] = self._answer(message)
            names.append(name)
        return names

    def _answer(self, message: Message) -> Message:
        context = self.contexts[message.metadata.dst_node_id]
        try:
            return self.app(message, context)
        except Exception as error:
            return Message(Error(code=0, reason=repr(error)), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        waiting = [name for name in message_ids if name in self.replies]
        return [self.replies.pop(name) for name in waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        names = list(self.push_messages(messages))
        return self.pull_messages(names)

    def set_run(self, run: Any) -> None:
        pass

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError("Flower has removed this call")


def contexts_of(sites: int, run_config: Values) -> dict[int, Context]:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as Flower's simulation does
    contexts = {}
    for site in range(sites):
        node = site + 1
        node_config: Fields = {"partition-id": site, "num-partitions": sites}
        contexts[node] = Context(1, node, node_config, RecordDict(), dict(run_config))
    return contexts


def first_model(server: ServerApp, grid: DryRun, run_config: Values) -> Message | None:
    """What the server sends first of the kind that the grid waits for; None if it ends without."""
    context = Context(1, 0, {}, RecordDict(), dict(run_config))
    try:
        server(grid, context)
    except FirstModelSent as sent:
        return sent.message
    return None


def order(kind: str, node: int, content: RecordDict) -> Message:
    """A message to one site, which may change its copy of the content."""
    message = Message(copy.deepcopy(content), dst_node_id=node, message_type=kind)
    message.metadata.__dict__["_message_id"] = str(uuid4())
    return message

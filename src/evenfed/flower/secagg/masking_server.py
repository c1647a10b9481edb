"""The server's side of masked sums: of what clients send it learns nothing but the sum.

The protocol is that of Flower's SecAgg+ (Bell et al., 2020): keys, shares of keys, masked vectors, and shares that take
masks off. Here one set-up serves several sums, each under keys and seeds of its own, and the four steps can ride on
messages that are sent anyway. Flower's own client is not used: it folds each secret to 32 bits.
"""

import json
import random
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.secure_aggregation.crypto.shamir import combine_shares

from .. import wire
from ..reply_fields import failure
from ..wire import Values
from . import mask_crypto
from .mask_crypto import Vector, Words
from .masking_client import KEYS, MASKED, OPENED, PROTOCOL, SHARES, least_threshold

NEIGHBOURS = 31  # how many clients share masks with each; everyone up to this number

Messages = Iterable[Message]
Ask = Callable[[Messages], Messages]
Requests = dict[int, dict[str, str]]  # by node: named texts
Take = Callable[[int, Values], None]  # of a node; raises where it does not fit


class TooFewClientsError(Exception):
    """So many dropped out that a sum would tell too much, or that its masks cannot be taken off."""


class Session:
    """One set-up: keys of some nodes for several sums. Keys and shares first, then sum after sum."""

    def __init__(self, nodes: Sequence[int], sums: int) -> None:
        self.name = secrets.token_hex(16)
        self.sums = sums
        self.begun = 0  # of these
        count = len(nodes)
        self.shares = min(count, NEIGHBOURS)
        self.threshold = least_threshold(self.shares)
        self.near = _ring(nodes, self.shares)
        self.public: dict[int, list[str]] = {}
        self.boxes: Requests = {}  # by the node that they are for: by the node they are from

    @property
    def members(self) -> set[int]:
        """Those who made keys and shared them out."""
        return set(self.boxes)

    def check_enough(self, stage: str, nodes: Iterable[int]) -> None:
        """Raise if a sum over these would be too small, or could not be opened."""
        left = set(nodes)
        fewest = min((len(self.near[node] & left) for node in left), default=0)
        if fewest < self.threshold:
            present = len(left)
            everyone = len(self.near)
            raise TooFewClientsError(f"{stage}: {present} of {everyone} clients are left, {self.threshold} are needed")

    def keys_wanted(self) -> Requests:
        order = {"session": self.name, "sums": self.sums, "threshold": self.threshold}
        text = json.dumps(order)
        return {node: {KEYS: text} for node in self.near}

    def take_keys(self, node: int, answer: Values) -> None:
        keys = json.loads(answer[KEYS])
        if len(keys) != 1 + self.sums:
            raise ValueError
        for key in keys:
            mask_crypto.check_public(bytes.fromhex(key))
        self.public[node] = keys

    def shares_wanted(self) -> Requests:
        requests = {}
        for node in self.public:
            keys = {}
            for neighbour in self.near[node] & self.public.keys():
                keys[str(neighbour)] = self.public[neighbour]
            order = {"session": self.name, "public": keys}
            requests[node] = {SHARES: json.dumps(order)}
        return requests

    def take_shares(self, node: int, answer: Values) -> None:
        boxes = json.loads(answer[SHARES])
        received = {}
        for receiver, box in boxes.items():
            bytes.fromhex(box)
            received[int(receiver)] = box
        if received.keys() != (self.near[node] & self.public.keys()) - {node}:
            raise ValueError
        self.boxes.setdefault(node, {})
        for receiver, box in received.items():
            self.boxes.setdefault(receiver, {})[str(node)] = box

    def end_shares(self, answered: Collection[int]) -> None:
        """Leave out those who did not share their keys out."""
        boxes = {}
        for node in answered:
            received = self.boxes.get(node, {})
            boxes[node] = {source: box for source, box in received.items() if int(source) in answered}
        self.boxes = boxes

    def sum(
        self,
        nodes: Iterable[int],
        numbers: int,
        size: int,
    ) -> "MaskedSum":
        """The next sum, over some of the members: of single numbers and of a vector."""
        number = self.begun
        self.begun += 1
        return MaskedSum(self, number, set(nodes), numbers, size)


class MaskedSum:
    """One sum: masked vectors in, shares in, masks off."""

    def __init__(
        self,
        session: Session,
        number: int,
        nodes: set[int],
        numbers: int,
        size: int,
    ) -> None:
        self.session = session
        self.number = number
        self.nodes = nodes
        self.numbers = numbers
        self.gave: set[int] = set()
        self.total: Words = np.zeros(1 + numbers * mask_crypto.WORDS + size, dtype=np.uint64)
        self.shares: dict[int, list[bytes]] = {}  # of the secret of each that takes masks off

    def wanted(self) -> Requests:
        requests = {}
        session = self.session
        for node in self.nodes:
            order = {
                "session": session.name,
                "sum": self.number,
                "nodes": sorted(session.near[node] & self.nodes),
                "boxes": session.boxes[node],
            }
            requests[node] = {MASKED: json.dumps(order)}
            session.boxes[node] = {}  # sent once
        return requests

    def take(self, node: int, answer: Values) -> None:
        words = np.frombuffer(answer[MASKED], dtype="<u8")
        if words.shape != self.total.shape:
            raise ValueError
        self.total += words
        self.gave.add(node)

    def shares_wanted(self) -> Requests:
        absent = self.nodes - self.gave
        requests = {}
        for node in self.gave:
            neighbours = self.session.near[node]
            order = {
                "session": self.session.name,
                "sum": self.number,
                "gave": sorted(neighbours & self.gave),
                "absent": sorted(neighbours & absent),
            }
            requests[node] = {OPENED: json.dumps(order)}
        return requests

    def take_shares(self, node: int, answer: Values) -> None:
        received = []
        for owner, share in json.loads(answer[OPENED]).items():
            received.append((int(owner), bytes.fromhex(share)))
        for neighbour, share in received:
            if neighbour in self.session.near[node] and neighbour in self.nodes:
                self.shares.setdefault(neighbour, []).append(share)

    def opened(self, stage: str) -> tuple[list[float], Vector]:
        threshold = self.session.threshold
        for node in self.nodes:
            shares = self.shares.get(node, [])
            if len(shares) < threshold:
                raise TooFewClientsError(
                    f"{stage}: too few clients helped to take off the masks, {threshold} are needed"
                )
            try:
                secret = combine_shares(shares[:threshold])
                self._unmask(node, secret)
            except Exception as error:  # shares are bytes that clients chose
                kind = type(error).__name__
                raise TooFewClientsError(f"{stage}: a client gave wrong shares ({kind})") from None
        if int(self.total[0]) != len(self.gave):
            raise TooFewClientsError(f"{stage}: the masks did not cancel; a client gave wrong shares")
        end = 1 + self.numbers * mask_crypto.WORDS
        numbers = mask_crypto.numbers_of_words(self.total[1:end])
        return numbers, mask_crypto.vector_of_words(self.total[end:])

    def _unmask(self, node: int, secret: bytes) -> None:
        """Off the sum: the own mask of one who gave, or what the pairwise masks of one who left leave behind."""
        size = len(self.total)
        if node in self.gave:
            self.total -= mask_crypto.mask_of(secret, size)
            return
        for other in self.session.near[node] & self.gave:
            public = bytes.fromhex(self.session.public[other][1 + self.number])
            mask = mask_crypto.pair_mask(secret, public, size)
            if node > other:
                self.total += mask
            else:
                self.total -= mask


class ProtocolMessenger:
    """Brings parts of the protocol to nodes and their answers back, and notes who was lost, and where."""

    def __init__(
        self,
        ask: Ask,
        lifetime: float | None = None,
        tell_errors: bool = False,
    ) -> None:
        self.ask = ask
        self.lifetime = lifetime
        self.tell_errors = tell_errors
        self.lost: dict[int, str] = {}  # node -> reason
        self.stages: list[str] = []  # how each exchange of messages went
        self.sent = time.perf_counter()

    def messages(self, requests: Requests, contents: Mapping[int, RecordDict] | None = None) -> list[Message]:
        """A message to each node; `contents` are what it holds in addition to the protocol's part."""
        self.sent = time.perf_counter()
        messages = []
        for node, parts in requests.items():
            content = RecordDict(dict(contents[node]) if contents else {})
            content[PROTOCOL] = ConfigRecord(dict(parts))
            message = Message(
                content,
                dst_node_id=node,
                message_type=wire.TRAIN,
                ttl=self.lifetime,
            )
            messages.append(message)
        return messages

    def exchange(
        self,
        title: str,
        requests: Requests,
        take: Take,
    ) -> set[int]:
        messages = self.messages(requests)
        replies = self.ask(messages)
        return self.collect(title, requests, replies, take)

    def collect(
        self,
        title: str,
        asked: Collection[int],
        replies: Messages,
        take: Take,
    ) -> set[int]:
        """Take the answers; a node whose answer does not fit is lost."""
        answered = set()
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in asked or node in answered:
                continue
            answer = self._answer(reply)
            if answer is None:
                continue
            try:
                take(node, answer)
            except Exception as error:  # whatever a client may send
                kind = type(error).__name__
                self.lost[node] = f"its answer in the stage '{title}' cannot be read ({kind})"
                continue
            answered.add(node)
        for node in asked:
            if node not in answered:
                self.lost.setdefault(node, "no reply")
        seconds = time.perf_counter() - self.sent
        share = f"{len(answered)}/{len(asked)}"
        self.stages.append(f"{title} {share} in {seconds:.1f} s")
        return answered

    def _answer(self, reply: Message) -> Any:
        """The protocol's part of a reply; None, with the reason in `lost`, where it has none."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            self.lost[node] = failure(reply.error, self.tell_errors)
            return None
        if PROTOCOL not in reply.content.config_records:
            self.lost[node] = "it runs a client app without masked sums; use evenfed.flower.client_app"
            return None
        return reply.content.config_records[PROTOCOL]


def open_session(nodes: Sequence[int], sums: int, messenger: ProtocolMessenger) -> Session:
    """Everyone makes keys, and hands encrypted shares of its secrets to its neighbours."""
    session = Session(nodes, sums)
    session.check_enough("set-up", nodes)
    answered = messenger.exchange("set-up", session.keys_wanted(), session.take_keys)
    session.check_enough("set-up", answered)
    answered = messenger.exchange("share keys", session.shares_wanted(), session.take_shares)
    session.end_shares(answered)
    session.check_enough("share keys", answered)
    return session


def _ring(nodes: Sequence[int], shares: int) -> dict[int, set[int]]:
    """For each node the neighbours it shares masks with, itself among them: those near it on a random ring."""
    ring = list(nodes)
    random.SystemRandom().shuffle(ring)
    half = shares // 2
    near = {}
    for position, node in enumerate(ring):
        places = range(position - half, position + half + 1)
        near[node] = {ring[k % len(ring)] for k in places}
    return near

"""A client's side of masked sums: it makes keys, shares them out, masks one vector per sum, and helps to open the sum.

It trusts nobody's word for its own safety: it masks once per sum, helps to open a sum once, never tells both secrets of
a neighbour, and refuses groups that are too small. A secret is forgotten once it is used.
"""

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.secure_aggregation.crypto.shamir import create_shares

from ...core.errors import InputError
from .. import wire
from ..wire import Fields, Values
from . import mask_crypto
from .mask_crypto import Vector, Words

PROTOCOL = "evenfed.masks"  # the record of a message that belongs to masked sums, and of a client's state

# parts of that record: a message may hold several, its reply holds an answer to each
KEYS = "keys"
SHARES = "shares"
MASKED = "masked"
OPENED = "opened"

LEAST = 3  # with two, each would learn the other's part from the public sum
MOST_SUMS = 64  # with the same set-up
_SESSIONS = 3  # that a client remembers: one in use, one made ready, one for scores

Contribution = tuple[list[float], Vector]  # single numbers, and a vector that is rounded
Parts = list[list[str]]  # by sum: shares of one client's seed and of its key
_bytes = bytes.fromhex
Contribute = Callable[[Message, Context], Contribution]


def least_threshold(holders: int) -> int:
    """How many of those who hold shares must help: two thirds, so that no secret and its rival can both be had."""
    two_thirds = math.ceil(2 * holders / 3)
    return max(LEAST, two_thirds)


def respond(message: Message, context: Context, contribute: Contribute) -> Message:
    """A client's reply to whatever the message asks of it; `contribute` gives what is masked."""
    orders = {}
    for part, text in message.content.config_records[PROTOCOL].items():
        orders[part] = json.loads(str(text))
    kept = _kept_keys(context)
    answer: Fields = {}
    if MASKED in orders:
        order = orders[MASKED]
        keys = _of_session(kept, order)
        keys.check_mask(order)
        numbers, vector = contribute(message, context)
        words = keys.masked(order, numbers, vector)
        answer[MASKED] = words.astype("<u8").tobytes()
    if OPENED in orders:
        order = orders[OPENED]
        shares = _of_session(kept, order).opened(order)
        answer[OPENED] = json.dumps(shares)
    if KEYS in orders:
        keys = ClientKeys.new(message.metadata.dst_node_id, orders[KEYS])
        kept[keys.session] = keys
        answer[KEYS] = json.dumps(keys.public_keys())
    if SHARES in orders:
        order = orders[SHARES]
        boxes = _of_session(kept, order).boxes(order)
        answer[SHARES] = json.dumps(boxes)
    latest = list(kept.values())[-_SESSIONS:]
    context.state[PROTOCOL] = ConfigRecord({"places": json.dumps(list(map(dataclasses.asdict, latest)))})
    content = RecordDict()
    content[PROTOCOL] = ConfigRecord(answer)
    content[wire.METRICS] = MetricRecord({"num-examples": 1})  # Flower's wrappers want one
    return Message(content, reply_to=message)


def _kept_keys(context: Context) -> dict[str, "ClientKeys"]:
    """What the client holds by session, the latest last, from its state."""
    record: Values = context.state.config_records.get(PROTOCOL, {})
    kept = {}
    for fields in json.loads(str(record.get("places", "[]"))):
        kept[fields["session"]] = ClientKeys(**fields)
    return kept


def _of_session(kept: Mapping[str, "ClientKeys"], order: Values) -> "ClientKeys":
    session = str(order["session"])
    if session not in kept:
        raise InputError("it has no keys for this sum")
    return kept[session]


@dataclass
class ClientKeys:
    """What a client holds for the sums of one set-up. Bytes are hexadecimal, and empty once they were used."""

    session: str
    node: int
    threshold: int
    lock: str  # the private key that opens boxes
    keys: list[str] = field(default_factory=list)  # private keys of the masks with neighbours, by sum
    seeds: list[str] = field(default_factory=list)  # of the own mask, by sum
    public: dict[str, list[str]] = field(default_factory=dict)  # of each neighbour: its lock's key, its masks' keys
    shares: dict[str, Parts] = field(default_factory=dict)  # of each neighbour's seed and key, by sum
    asked: dict[str, list[int]] = field(default_factory=dict)  # by sum: who takes part, until it is opened

    @classmethod
    def new(cls, node: int, order: Values) -> "ClientKeys":
        sums = int(order["sums"])
        threshold = int(order["threshold"])
        if not 1 <= sums <= MOST_SUMS or threshold < LEAST:
            raise InputError(f"keys for {sums} sums with threshold {threshold}: refused")
        return cls(
            session=str(order["session"]),
            node=node,
            threshold=threshold,
            lock=mask_crypto.new_key().hex(),
            keys=[mask_crypto.new_key().hex() for _ in range(sums)],
            seeds=[mask_crypto.new_seed().hex() for _ in range(sums)],
        )

    def public_keys(self) -> list[str]:
        """Of the lock, then of the masks, sum by sum."""
        public = []
        for private in (self.lock, *self.keys):
            key = mask_crypto.public_of(_bytes(private))
            public.append(key.hex())
        return public

    def boxes(self, order: Values) -> dict[str, str]:
        """Shares of the own secrets, one sealed box for each neighbour."""
        self.public = dict(order["public"])
        self._check_keys()
        holders = sorted(self.public)
        count = len(holders)
        if not least_threshold(count) <= self.threshold <= count:
            raise InputError(f"masks shared among {count} clients, {self.threshold} of whom can open them: refused")
        parts: dict[str, Parts] = {holder: [] for holder in holders}
        for seed, key in zip(self.seeds, self.keys, strict=True):
            of_seed = create_shares(_bytes(seed), self.threshold, count)
            of_key = create_shares(_bytes(key), self.threshold, count)
            for holder, seed_share, key_share in zip(holders, of_seed, of_key, strict=True):
                part = [seed_share.hex(), key_share.hex()]
                parts[holder].append(part)
        me = str(self.node)
        self.shares[me] = parts.pop(me)
        sealed = {}
        for holder, content in parts.items():
            text = json.dumps(content)
            lock, public = self._box_keys(holder)
            context = self._context(me, holder)
            box = mask_crypto.sealed(lock, public, text.encode(), context)
            sealed[holder] = box.hex()
        return sealed

    def _check_keys(self) -> None:
        """Refuse neighbours' keys that are not each other's, and own ones that are not one's own."""
        every_key: list[str] = []
        for keys in self.public.values():
            every_key += keys
        me = str(self.node)
        is_mine = self.public.get(me) == self.public_keys()
        different = set(every_key)
        are_different = len(different) == len(every_key)
        if not (is_mine and are_different):
            raise InputError("the server passes on wrong keys")

    def check_mask(self, order: Values) -> None:
        """Refuse a second vector under the same mask, and a group that is too small."""
        number = int(order["sum"])
        participation = self._neighbours(order["nodes"])
        if not self.keys[number]:
            raise InputError("a second vector under the same mask: refused")
        if self.node not in participation or len(participation) < self.threshold:
            count = len(participation)
            raise InputError(f"a sum over {count} clients, where {self.threshold} are needed: refused")

    def masked(
        self,
        order: Values,
        numbers: Iterable[float],
        vector: Vector,
    ) -> Words:
        """The numbers and the vector under the own mask and one with each neighbour; the first word counts clients."""
        for source, box in order["boxes"].items():
            with contextlib.suppress(Exception):  # a neighbour's box that cannot be opened: others have its shares
                self.shares[source] = self._unboxed(source, box)
        number = int(order["sum"])
        participation = self._neighbours(order["nodes"])
        count = np.ones(1, dtype=np.uint64)
        of_numbers = mask_crypto.words_of_numbers(numbers)
        of_vector = mask_crypto.words_of_vector(vector)
        words = np.concatenate([count, of_numbers, of_vector])
        size = len(words)
        seed = _bytes(self.seeds[number])
        words += mask_crypto.mask_of(seed, size)
        key = _bytes(self.keys[number])
        for neighbour in participation - {self.node}:
            keys = self.public[str(neighbour)]
            public = _bytes(keys[1 + number])
            mask = mask_crypto.pair_mask(key, public, size)
            if self.node > neighbour:
                words += mask
            else:
                words -= mask
        self.keys[number] = ""
        self.seeds[number] = ""
        self.asked[str(number)] = sorted(participation)
        return words

    def opened(self, order: Values) -> dict[str, str]:
        """Shares of the seeds of those who gave, and of the keys of those who did not: never both, and only once."""
        number = int(order["sum"])
        gave = set(order["gave"])
        absent = set(order["absent"])
        asked = self.asked.pop(str(number), ())
        is_of_sum = gave | absent <= set(asked)
        if gave & absent or not is_of_sum:
            raise InputError("shares that do not belong to an open sum: refused")
        if len(gave) < self.threshold:
            count = len(gave)
            raise InputError(f"a sum over {count} clients, where {self.threshold} are needed: refused")
        shares = {}
        for owner, parts in self.shares.items():
            of_seed, of_key = parts[number]
            node = int(owner)
            if node in gave:
                shares[owner] = of_seed
            if node in absent:
                shares[owner] = of_key
            parts[number] = ["", ""]
        return shares

    def _neighbours(self, nodes: Iterable[int]) -> set[int]:
        """Of these, those who share masks with this client, itself among them."""
        return {node for node in nodes if str(node) in self.public}

    def _unboxed(self, source: str, box: str) -> Parts:
        lock, public = self._box_keys(source)
        context = self._context(source, str(self.node))
        content = mask_crypto.unsealed(lock, public, _bytes(box), context)
        parts: Parts = json.loads(content)
        for of_seed, of_key in parts:
            _bytes(of_seed)
            _bytes(of_key)
        if len(parts) != len(self.keys):
            raise InputError("another number of shares")
        return parts

    def _box_keys(self, neighbour: str) -> tuple[bytes, bytes]:
        """The own private and the neighbour's public one."""
        keys = self.public[neighbour]
        return _bytes(self.lock), _bytes(keys[0])

    def _context(self, source: str, holder: str) -> bytes:
        return f"{self.session} {source} {holder}".encode()

"""Sums of which the server learns nothing but the sum: Flower's SecAgg+ over the Message API.

The client's side is Flower's own mod. The server's side is the four stages of Flower's workflow with Flower's
primitives; the workflow itself belongs to the legacy API and carries one weighted average of models only.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod.secure_aggregation import secaggplus_mod
from flwr.common import Code, FitRes, Status, bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key
from numpy.typing import NDArray

from ..core.errors import InputError
from . import wire

PROTOCOL = RECORD_KEY_CONFIGS  # the record of a message that belongs to the protocol
LEAST = 3  # with two, each would learn the other's part from the public sum
NEIGHBOURS = 31  # clients that share masks and keys with each; everyone up to this number
CLIP = 8.0  # entries of a masked vector lie within +- this (Flower's default)
STEPS = 2**30  # and are rounded to this many steps
RANGES = (2.0**50, 2.0**20, 2.0**-10)  # a number travels in three parts, each half a step of the one before

Vector = NDArray[np.float64]
Ask = Callable[[Iterable[Message]], Iterable[Message]]


class TooFewError(Exception):
    """So many dropped out that the masks cannot be taken off."""


def respond(message: Message, context: Context, contribute: Callable[[Message, Context], Vector]) -> Message:
    """A client's reply in whichever stage this is; `contribute` gives the vector that is masked."""

    def inner(message: Message, context: Context) -> Message:
        vector = contribute(message, context)
        if not bool((np.abs(vector) <= CLIP).all()):  # also where it is not a number
            raise InputError(f"an entry to be masked is not finite or beyond {CLIP:g}; lower the learning rate")
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), 1, {})
        return Message(fitres_to_recorddict(result, False), reply_to=message)

    full = secaggplus_mod(message, context, inner)
    kept = {PROTOCOL: full.content[PROTOCOL], wire.METRICS: MetricRecord({"num-examples": 1})}
    full.content = RecordDict(kept)
    return full


def split(numbers: Iterable[float]) -> Vector:
    """Numbers within +-2^50 as entries to be masked; their sum is exact to 2^-40 a client."""
    parts = []
    for rest in numbers:
        if not abs(rest) <= RANGES[0]:
            raise InputError("a number to be summed is not finite or too large; is the loss of this client finite?")
        for reach in RANGES:
            step = 2 * reach / STEPS
            part = round(rest / step) * step
            parts.append(part / reach * CLIP)
            rest -= part
    return np.array(parts, dtype=np.float64)


def joined(entries: Vector) -> list[float]:
    """The numbers back from (sums of) their entries."""
    return [float(row) for row in entries.reshape(-1, len(RANGES)) @ (np.array(RANGES) / CLIP)]


class SecureSum:
    """One run of the protocol over `nodes`: open, orders out, replies in, close. `lost` names who dropped out."""

    def __init__(self, nodes: Sequence[int], size: int, ask: Ask, lifetime: float | None = None) -> None:
        self.size, self.ask, self.lifetime = size, ask, lifetime  # `size`: entries of each vector
        ring, shares = list(nodes), min(len(nodes), NEIGHBOURS)
        random.SystemRandom().shuffle(ring)
        reach = range(-(shares // 2), shares // 2 + 1)
        self.near = {node: {ring[(at + k) % len(ring)] for k in reach} for at, node in enumerate(ring)}
        self.shares, self.threshold = shares, max(2, math.ceil(2 * shares / 3))
        self.modulus = 2 ** (STEPS.bit_length() + len(ring).bit_length())
        self.keys: dict[int, list[bytes]] = {}
        self.boxes: dict[int, list[tuple[int, bytes]]] = {}  # to whom: (from whom, encrypted shares)
        self.gave: set[int] = set()
        self.total: list[NDArray[Any]] | None = None
        self.lost: dict[int, str] = {}

    def open(self) -> None:
        """Everyone makes keys, and hands encrypted shares of its secrets to its neighbours."""
        if len(self.near) < LEAST:
            raise TooFewError(f"{len(self.near)} clients left; a masked sum needs {LEAST}")
        setup = {
            Key.SAMPLE_NUMBER: len(self.near),
            Key.SHARE_NUMBER: self.shares,
            Key.THRESHOLD: self.threshold,
            Key.CLIPPING_RANGE: CLIP,
            Key.TARGET_RANGE: STEPS,
            Key.MOD_RANGE: self.modulus,
            Key.MAX_WEIGHT: 1.0,
        }
        replies = self._stage(Stage.SETUP, dict.fromkeys(self.near, setup))
        self.keys = {node: [told[Key.PUBLIC_KEY_1], told[Key.PUBLIC_KEY_2]] for node, told in replies.items()}
        self._enough(self.keys)
        known = {node: {str(k): self.keys[k] for k in self.near[node] if k in self.keys} for node in self.keys}
        replies = self._stage(Stage.SHARE_KEYS, known)
        self.boxes = {node: [] for node in replies}
        for source, told in replies.items():
            for node, box in zip(told[Key.DESTINATION_LIST], told[Key.CIPHERTEXT_LIST], strict=True):
                if node in self.boxes:
                    self.boxes[node].append((source, box))
        self._enough(self.boxes)

    def orders(self, contents: Mapping[int, RecordDict]) -> list[Message]:
        """For each that is left, the order to send its masked vector."""
        orders = []
        for node, boxes in self.boxes.items():
            lists = {Key.SOURCE_LIST: [s for s, _ in boxes], Key.CIPHERTEXT_LIST: [box for _, box in boxes]}
            orders.append(self._order(node, Stage.COLLECT_MASKED_VECTORS, lists, contents[node]))
        return orders

    def add(self, reply: Message) -> None:
        """Add a masked vector to the sum and let it go."""
        node, told = reply.metadata.src_node_id, self._told(reply)
        if told is None or node not in self.boxes or node in self.gave:
            return
        vectors = [bytes_to_ndarray(packed) for packed in told[Key.MASKED_PARAMETERS]]
        if [(v.shape, v.dtype.name) for v in vectors] != [((1,), "int64"), ((self.size,), "int64")]:
            self.lost[node] = "its masked vector has another shape than was asked for"
            return
        self.gave.add(node)
        self.total = vectors if self.total is None else parameters_addition(self.total, vectors)
        self.total = parameters_mod(self.total, self.modulus)

    def close(self) -> Vector:
        """Take off the masks with the neighbours' shares: the sum over those who gave."""
        self.lost.update({node: "no reply" for node in self.boxes if node not in self.gave and node not in self.lost})
        self._enough(self.gave)
        absent = set(self.boxes) - self.gave
        asked = {
            node: {
                Key.ACTIVE_NODE_ID_LIST: sorted(self.near[node] & self.gave),
                Key.DEAD_NODE_ID_LIST: sorted(self.near[node] & absent),
            }
            for node in self.gave
        }
        shares: dict[int, list[bytes]] = {node: [] for node in self.boxes}
        for told in self._stage(Stage.UNMASK, asked).values():
            for owner, share in zip(told[Key.NODE_ID_LIST], told[Key.SHARE_LIST], strict=True):
                shares[owner].append(share)
        if any(len(found) < self.threshold for found in shares.values()):
            raise TooFewError("too few clients helped to take off the masks")
        for node, found in shares.items():
            self._unmask(node, combine_shares(found))
        assert self.total is not None
        factor, summed = parameters_mod(self.total, self.modulus)
        if int(factor[0]) != len(self.gave) * STEPS:
            raise TooFewError("the masks did not cancel: a client answered with wrong shares")
        found_sum: Vector = dequantize([summed], CLIP, STEPS)[0] - (len(self.gave) - 1) * CLIP
        return found_sum

    def _unmask(self, node: int, secret: bytes) -> None:
        """Off the sum: the own mask of one who gave, or what the pairwise masks of one who left leave behind."""
        assert self.total is not None
        shapes = [v.shape for v in self.total]
        if node in self.gave:
            self.total = parameters_subtraction(self.total, pseudo_rand_gen(secret, self.modulus, shapes))
            return
        for other in self.near[node] & self.gave:
            key = generate_shared_key(bytes_to_private_key(secret), bytes_to_public_key(self.keys[other][0]))
            mask = pseudo_rand_gen(key, self.modulus, shapes)
            act = parameters_addition if node > other else parameters_subtraction
            self.total = act(self.total, mask)

    def _enough(self, left: Iterable[int]) -> None:
        here = set(left)
        if len(here) < 2 or any(len(self.near[node] & here) < self.threshold for node in here):
            raise TooFewError(
                f"{len(here)} of {len(self.near)} clients are left; taking off masks needs {self.threshold}"
            )

    def _stage(self, stage: str, asked: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        """What each node answered in a stage."""
        found = {}
        for reply in self.ask([self._order(node, stage, told) for node, told in asked.items()]):
            told = self._told(reply)
            if told is not None:
                found[reply.metadata.src_node_id] = told
        self.lost.update({node: "no reply" for node in asked if node not in found and node not in self.lost})
        return found

    def _order(self, node: int, stage: str, told: Mapping[str, Any], content: RecordDict | None = None) -> Message:
        record = ConfigRecord({**told, Key.STAGE: stage})
        whole = RecordDict({**(content or {}), PROTOCOL: record})
        return Message(whole, dst_node_id=node, message_type=wire.TRAIN, ttl=self.lifetime)

    def _told(self, reply: Message) -> Any:
        node = reply.metadata.src_node_id
        if reply.has_error():
            self.lost[node] = str(reply.error.reason)
        elif PROTOCOL not in reply.content.config_records:
            self.lost[node] = "it runs a client app without secure sums; use evenfed.flower.client_app"
        else:
            return reply.content.config_records[PROTOCOL]
        return None

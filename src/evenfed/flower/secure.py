"""Sums of which the server learns nothing but the sum: Flower's SecAgg+ over the Message API.

The client's side is Flower's own mod. The server's side is the four stages of Flower's workflow with Flower's
primitives; the workflow itself belongs to the legacy API and carries one weighted average of models only.
"""

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

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
from .fields import failure

PROTOCOL = RECORD_KEY_CONFIGS  # the record of a message that belongs to the protocol
LEAST = 3  # with two, each would learn the other's part from the public sum
NEIGHBOURS = 31  # how many clients share masks and keys with each; everyone up to this number
CLIP = 8.0  # entries of a masked vector lie within +- this (Flower's default)
STEPS = 2**30  # and are rounded to this many steps
RANGES = (2.0**50, 2.0**20, 2.0**-10)  # a number travels in three parts, each half a step of the one before

T = TypeVar("T")
Vector = NDArray[np.float64]
Messages = Iterable[Message]
Ask = Callable[[Messages], Messages]
Contribute = Callable[[Message, Context], Vector]
Box = tuple[int, bytes]  # from whom, encrypted shares
Questions = Mapping[int, wire.Values]  # by node


class TooFewError(Exception):
    """So many dropped out that the masks cannot be taken off."""


def respond(message: Message, context: Context, contribute: Contribute) -> Message:
    """A client's reply in whichever stage this is; `contribute` gives the vector that is masked."""

    def inner(message: Message, context: Context) -> Message:
        vector = contribute(message, context)
        within = np.abs(vector) <= CLIP  # False where it is not a number
        if not bool(within.all()):
            raise InputError(f"an entry to be masked is not finite or beyond {CLIP:g}; lower the learning rate")
        result = FitRes(
            status=Status(Code.OK, ""),
            parameters=ndarrays_to_parameters([vector]),
            num_examples=1,
            metrics={},
        )
        content = fitres_to_recorddict(result, keep_input=False)
        return Message(content, reply_to=message)

    reply = secaggplus_mod(message, context, inner)
    content = RecordDict()
    content[PROTOCOL] = reply.content[PROTOCOL]
    content[wire.METRICS] = MetricRecord({"num-examples": 1})
    reply.content = content
    return reply


def split(numbers: Iterable[float]) -> Vector:
    """Numbers within +-2^50 as entries to be masked; their sum is exact to 2^-40 per client."""
    entries = []
    for rest in numbers:
        if not abs(rest) <= RANGES[0]:
            raise InputError("a number to be summed is not finite or too large; is the loss of this client finite?")
        for reach in RANGES:
            step = 2 * reach / STEPS
            part = round(rest / step) * step
            entries.append(part / reach * CLIP)
            rest -= part
    return np.array(entries, dtype=np.float64)


def joined(entries: Vector) -> list[float]:
    """The numbers back from (sums of) their entries."""
    scales = np.array(RANGES) / CLIP
    rows = entries.reshape(-1, len(RANGES))
    numbers: list[float] = (rows @ scales).tolist()
    return numbers


class SecureSum:
    """One run of the protocol over `nodes`: open, tasks out, replies in, close. `lost` names who dropped out."""

    def __init__(
        self,
        nodes: Sequence[int],
        size: int,
        ask: Ask,
        lifetime: float | None = None,
        tell_errors: bool = False,
    ) -> None:
        self.size = size  # entries of each vector
        self.ask = ask
        self.lifetime = lifetime
        self.tell_errors = tell_errors
        count = len(nodes)
        self.shares = min(count, NEIGHBOURS)
        two_thirds = math.ceil(2 * self.shares / 3)
        self.threshold = max(2, two_thirds)
        self.near = _ring(nodes, self.shares)
        bits = STEPS.bit_length() + count.bit_length()
        self.modulus = 2**bits
        self.keys: dict[int, list[bytes]] = {}
        self.boxes: dict[int, list[Box]] = {}  # by the node that they are for
        self.gave: set[int] = set()
        self.total: list[NDArray[Any]] | None = None
        self.lost: dict[int, str] = {}

    def open(self) -> None:
        """Everyone makes keys, and hands encrypted shares of its secrets to its neighbours."""
        left = len(self.near)
        if left < LEAST:
            raise TooFewError(f"{left} clients left; a masked sum needs {LEAST}")
        self._exchange_keys()
        self._exchange_shares()

    def _exchange_keys(self) -> None:
        setup = {
            Key.SAMPLE_NUMBER: len(self.near),
            Key.SHARE_NUMBER: self.shares,
            Key.THRESHOLD: self.threshold,
            Key.CLIPPING_RANGE: CLIP,
            Key.TARGET_RANGE: STEPS,
            Key.MOD_RANGE: self.modulus,
            Key.MAX_WEIGHT: 1.0,
        }
        questions = dict.fromkeys(self.near, setup)
        self.keys = self._stage(Stage.SETUP, questions, _public_keys)
        self._check_enough(self.keys)

    def _exchange_shares(self) -> None:
        questions = {}
        for node in self.keys:
            neighbours = self.near[node] & self.keys.keys()
            neighbours_keys: dict[str, Any] = {}
            for neighbour in neighbours:
                neighbours_keys[str(neighbour)] = self.keys[neighbour]
            questions[node] = neighbours_keys
        answers = self._stage(Stage.SHARE_KEYS, questions, _encrypted_shares)
        self.boxes = {node: [] for node in answers}
        for source, boxes in answers.items():
            for node, box in boxes:
                if node in self.boxes:
                    received = self.boxes[node]
                    received.append((source, box))
        self._check_enough(self.boxes)

    def tasks(self, contents: Mapping[int, RecordDict]) -> list[Message]:
        """For each that is left, the task to send its masked vector."""
        messages = []
        for node, boxes in self.boxes.items():
            sources = [source for source, _ in boxes]
            shares = [box for _, box in boxes]
            message = self._message(
                node=node,
                stage=Stage.COLLECT_MASKED_VECTORS,
                values={Key.SOURCE_LIST: sources, Key.CIPHERTEXT_LIST: shares},
                content=contents[node],
            )
            messages.append(message)
        return messages

    def add(self, reply: Message) -> None:
        """Add a masked vector to the sum and let it go."""
        node = reply.metadata.src_node_id
        answer = self._answer(reply)
        awaited = node in self.boxes and node not in self.gave
        if answer is None or not awaited:
            return
        try:
            packed = answer[Key.MASKED_PARAMETERS]
            vectors = [bytes_to_ndarray(vector) for vector in packed]
        except Exception as error:  # whatever unknown bytes may cause
            self._lose(node, Stage.COLLECT_MASKED_VECTORS, error)
            return
        shapes = [vector.shape for vector in vectors]
        types = {vector.dtype.name for vector in vectors}
        if shapes != [(1,), (self.size,)] or types != {"int64"}:
            self.lost[node] = "its masked vector has another shape than was asked for"
            return
        self.gave.add(node)
        if self.total is not None:
            vectors = parameters_addition(self.total, vectors)
        self.total = parameters_mod(vectors, self.modulus)

    def close(self) -> Vector:
        """Take off the masks with the neighbours' shares: the sum over those who gave."""
        self._note_silent(self.boxes, self.gave)
        self._check_enough(self.gave)
        for node, shares in self._collected_shares().items():
            if len(shares) < self.threshold:
                raise TooFewError("too few clients helped to take off the masks")
            try:
                secret = combine_shares(shares)
                self._unmask(node, secret)
            except Exception as error:  # shares are bytes that clients chose
                kind = type(error).__name__
                raise TooFewError(f"the masks cannot be taken off: a client gave wrong shares ({kind})") from None
        assert self.total is not None
        givers = len(self.gave)
        count, unmasked = parameters_mod(self.total, self.modulus)
        if int(count[0]) != givers * STEPS:
            raise TooFewError("the masks did not cancel: a client answered with wrong shares")
        (shifted,) = dequantize([unmasked], CLIP, STEPS)
        offset = (givers - 1) * CLIP  # every vector is shifted by CLIP; dequantize takes off one shift
        total: Vector = shifted - offset
        return total

    def _collected_shares(self) -> dict[int, list[bytes]]:
        """For every node that holds masks in the sum: shares of the secret that takes them off."""
        absent = self.boxes.keys() - self.gave
        questions = {}
        for node in self.gave:
            neighbours = self.near[node]
            questions[node] = {
                Key.ACTIVE_NODE_ID_LIST: sorted(neighbours & self.gave),
                Key.DEAD_NODE_ID_LIST: sorted(neighbours & absent),
            }
        collected: dict[int, list[bytes]] = {node: [] for node in self.boxes}
        answers = self._stage(Stage.UNMASK, questions, _shares)
        for shares in answers.values():
            for owner, share in shares:
                if owner in collected:
                    collected[owner].append(share)
        return collected

    def _unmask(self, node: int, secret: bytes) -> None:
        """Off the sum: the own mask of one who gave, or what the pairwise masks of one who left leave behind."""
        assert self.total is not None
        shapes = [vector.shape for vector in self.total]
        if node in self.gave:
            mask = pseudo_rand_gen(secret, self.modulus, shapes)
            self.total = parameters_subtraction(self.total, mask)
            return
        private_key = bytes_to_private_key(secret)
        for other in self.near[node] & self.gave:
            public, _ = self.keys[other]
            public_key = bytes_to_public_key(public)
            shared_key = generate_shared_key(private_key, public_key)
            mask = pseudo_rand_gen(shared_key, self.modulus, shapes)
            combine = parameters_addition if node > other else parameters_subtraction
            self.total = combine(self.total, mask)

    def _check_enough(self, nodes: Iterable[int]) -> None:
        left = set(nodes)
        enough = len(left) >= 2
        for node in left:
            neighbours = self.near[node] & left
            if len(neighbours) < self.threshold:
                enough = False
        if not enough:
            present = len(left)
            everyone = len(self.near)
            raise TooFewError(f"{present} of {everyone} clients are left; taking off masks needs {self.threshold}")

    def _stage(self, stage: str, questions: Questions, read: Callable[[Any], T]) -> dict[int, T]:
        """What `read` makes of each node's answer in a stage; a node whose answer it cannot read is lost."""
        messages = []
        for node, values in questions.items():
            message = self._message(node, stage, values)
            messages.append(message)
        answers = {}
        for reply in self.ask(messages):
            node = reply.metadata.src_node_id
            answer = self._answer(reply)
            if answer is None or node not in questions:
                continue
            try:
                answers[node] = read(answer)
            except Exception as error:  # whatever a client may send
                self._lose(node, stage, error)
        self._note_silent(questions, answers)
        return answers

    def _lose(self, node: int, stage: str, error: Exception) -> None:
        kind = type(error).__name__
        self.lost[node] = f"its answer in the stage '{stage}' cannot be read ({kind})"

    def _note_silent(self, asked: Iterable[int], answered: Collection[int]) -> None:
        for node in asked:
            if node not in answered:
                self.lost.setdefault(node, "no reply")

    def _message(
        self,
        node: int,
        stage: str,
        values: wire.Values,
        content: RecordDict | None = None,
    ) -> Message:
        whole = RecordDict(dict(content or {}))
        whole[PROTOCOL] = ConfigRecord({**values, Key.STAGE: stage})
        return Message(
            whole,
            dst_node_id=node,
            message_type=wire.TRAIN,
            ttl=self.lifetime,
        )

    def _answer(self, reply: Message) -> Any:
        """The protocol's part of a reply; None, with the reason in `lost`, where it has none."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            self.lost[node] = failure(reply.error, self.tell_errors)
            return None
        if PROTOCOL not in reply.content.config_records:
            self.lost[node] = "it runs a client app without secure sums; use evenfed.flower.client_app"
            return None
        return reply.content.config_records[PROTOCOL]


def _public_keys(answer: Any) -> list[bytes]:
    """A node's two keys, each checked to be one."""
    keys = [answer[Key.PUBLIC_KEY_1], answer[Key.PUBLIC_KEY_2]]
    for key in keys:
        bytes_to_public_key(key)
    return keys


def _encrypted_shares(answer: Any) -> list[Box]:
    """(node that it is for, encrypted share)."""
    return _paired(answer[Key.DESTINATION_LIST], answer[Key.CIPHERTEXT_LIST])


def _shares(answer: Any) -> list[Box]:
    """(owner of the secret, share)."""
    return _paired(answer[Key.NODE_ID_LIST], answer[Key.SHARE_LIST])


def _paired(nodes: Any, values: Any) -> list[Box]:
    pairs = []
    for node, value in zip(nodes, values, strict=True):
        if not isinstance(node, int) or not isinstance(value, bytes):
            raise TypeError
        pairs.append((node, value))
    return pairs


def _ring(nodes: Sequence[int], shares: int) -> dict[int, set[int]]:
    """For each node the neighbours it shares masks with, itself among them: those near it on a random ring."""
    ring = list(nodes)
    random.SystemRandom().shuffle(ring)
    length = len(ring)
    half = shares // 2
    near: dict[int, set[int]] = {}
    for position, node in enumerate(ring):
        near[node] = set()
        first = position - half
        last = position + half
        for k in range(first, last + 1):
            neighbour = ring[k % length]
            near[node].add(neighbour)
    return near

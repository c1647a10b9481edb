"""Masked sums without models: what a client refuses, what masks are made of, and sums that stay exact."""

import json

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.task_identity import TaskIdentity

import evenfed
from evenfed.flower.secagg import mask_crypto, masking_client
from evenfed.flower.secagg.masking_client import KEYS, MASKED, OPENED, PROTOCOL, SHARES
from evenfed.flower.secagg.masking_server import MaskedSum, ProtocolMessenger, Session, TooFewClientsError, open_session

pytestmark = pytest.mark.slow  # it loads flwr
NODES = [11, 5, 8, 23]
VECTORS = {node: np.array([node / 7, -1 / node, 7.5]) for node in NODES}


class Sites:
    """Clients that answer at once; `spoil(node, answer)` may change an answer, or return None to lose it."""

    def __init__(self, spoil=lambda node, answer: answer):
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.spoil = spoil
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in NODES}

    def ask(self, messages):
        for message in messages:
            node = message.metadata.dst_node_id
            reply = self.answer(node, message)
            answer = self.spoil(node, reply.content[PROTOCOL])
            if answer is not None:
                reply.content[PROTOCOL] = answer
                yield reply

    def answer(self, node, message):
        def contribute(message, context):
            return [node / 3], VECTORS[node]

        return masking_client.respond(message, self.contexts[node], contribute)

    def refusal(self, node, part, order):
        """What a client says that does not do as it is told."""
        content = RecordDict({PROTOCOL: ConfigRecord({part: json.dumps(order)})})
        with pytest.raises(evenfed.InputError) as refused:
            self.answer(node, Message(content, dst_node_id=node, message_type="train"))
        return str(refused.value)


def summed(courier, session):
    """One sum over all members, opened."""
    running = session.sum(session.members, numbers=1, size=3)
    given = courier.exchange("masked", running.wanted(), running.take)
    session.check_enough("masked", given)
    return opened(courier, running)


def opened(courier, running: MaskedSum):
    courier.exchange("unmasking", running.shares_wanted(), running.take_shares)
    return running.opened("unmasking")


def assert_sum(found, nodes):
    numbers, vector = found
    assert numbers == pytest.approx([sum(nodes) / 3], abs=1e-11)
    assert np.abs(vector - np.sum([VECTORS[node] for node in nodes], axis=0)).max() < 1e-11


def test_one_set_up_serves_several_sums_and_a_client_that_leaves_between_them():
    gone = set()
    sites = Sites(lambda node, answer: None if node in gone else answer)
    courier = ProtocolMessenger(sites.ask)
    session = open_session(NODES, 3, courier)
    assert_sum(summed(courier, session), NODES)
    gone.add(23)
    assert_sum(summed(courier, session), [11, 5, 8])
    assert courier.lost == {23: "no reply"}
    stages = [stage.split(" in ")[0] for stage in courier.stages[:3]]
    assert stages == ["set-up 4/4", "share keys 4/4", "masked 4/4"]
    gone.add(8)
    with pytest.raises(TooFewClientsError, match="masked: 2 of 4 clients are left, 3 are needed"):
        summed(courier, session)


def test_the_secrets_of_one_sum_open_no_other():
    """A client that leaves in the second sum has its key for that one opened; that of the first stays closed."""
    told = []  # shares of its secrets that the server saw

    def spoil(node, answer):
        if OPENED in answer:
            told.append(bytes.fromhex(json.loads(answer[OPENED])["23"]))
        return None if node == 23 and MASKED in answer and told else answer

    sites = Sites(spoil)
    courier = ProtocolMessenger(sites.ask)
    session = open_session(NODES, 2, courier)
    summed(courier, session)
    summed(courier, session)
    _, key_of_first, key_of_second = session.public[23]
    opened_later = combine_shares(told[4:])
    assert mask_crypto.public_of(opened_later).hex() == key_of_second != key_of_first
    assert mask_crypto.public_of(combine_shares(told[:4])).hex() not in session.public[23]  # the seed of its own mask
    (place,) = json.loads(sites.contexts[23].state[PROTOCOL]["places"])
    assert place["keys"] == ["", ""] and place["seeds"] == ["", ""]  # forgotten once used


def test_a_box_that_cannot_be_opened_costs_nobody_its_place():
    def spoil(node, answer):
        if node == 5 and SHARES in answer:
            boxes = json.loads(answer[SHARES])
            answer[SHARES] = json.dumps({**boxes, "11": "00" * 60})
        return answer

    sites = Sites(spoil)
    courier = ProtocolMessenger(sites.ask)
    session = open_session(NODES, 1, courier)
    assert_sum(summed(courier, session), NODES)
    assert not courier.lost


def test_what_a_client_refuses():
    sites = Sites()
    courier = ProtocolMessenger(sites.ask)
    session = open_session(NODES, 2, courier)
    running = session.sum(session.members, numbers=1, size=3)
    orders = {node: json.loads(parts[MASKED]) for node, parts in running.wanted().items()}
    assert "a sum over 2 clients, where 3 are needed" in sites.refusal(11, MASKED, {**orders[11], "nodes": [11, 5]})
    assert "no keys for this sum" in sites.refusal(11, MASKED, {**orders[11], "session": "another"})
    assert "an open sum" in sites.refusal(11, OPENED, {"session": session.name, "sum": 0, "gave": NODES, "absent": []})
    for node, order in orders.items():
        content = RecordDict({PROTOCOL: ConfigRecord({MASKED: json.dumps(order)})})
        reply = sites.answer(node, Message(content, dst_node_id=node, message_type="train"))
        running.take(node, reply.content[PROTOCOL])
    assert "a second vector under the same mask" in sites.refusal(11, MASKED, orders[11])
    question = {"session": session.name, "sum": 0}
    assert "an open sum" in sites.refusal(11, OPENED, {**question, "gave": NODES, "absent": [23]})
    assert "a sum over 2 clients" in sites.refusal(5, OPENED, {**question, "gave": [5, 8], "absent": [23]})
    assert "an open sum" in sites.refusal(8, OPENED, {**question, "gave": [*NODES, 99], "absent": []})
    assert "threshold 2: refused" in sites.refusal(8, KEYS, {"session": "x", "sums": 1, "threshold": 2})
    lax = Session(NODES, 1)
    courier.exchange("set-up", lax.keys_wanted(), lax.take_keys)
    keys = {str(node): keys for node, keys in lax.public.items()}
    assert "wrong keys" in sites.refusal(5, SHARES, {"session": lax.name, "public": {**keys, "5": keys["8"]}})
    five = {**keys, "6": [mask_crypto.new_key().hex(), mask_crypto.new_key().hex()]}
    assert "among 5 clients, 3 of whom can open them" in sites.refusal(5, SHARES, {"session": lax.name, "public": five})


def test_masks_hang_on_every_bit_of_their_seed():
    """Flower's own do not: their seeds are folded to 32 bits, so that words in another order give the same mask."""
    seed = bytes(range(32))
    reordered = seed[4:] + seed[:4]
    assert np.array_equal(pseudo_rand_gen(seed, 2**40, [(9,)])[0], pseudo_rand_gen(reordered, 2**40, [(9,)])[0])
    mask = mask_crypto.mask_of(seed, 4096)
    assert not np.array_equal(mask, mask_crypto.mask_of(reordered, 4096))
    for bit in range(256):
        other = bytearray(seed)
        other[bit // 8] ^= 1 << bit % 8
        assert not (mask_crypto.mask_of(bytes(other), 4) == mask[:4]).any()
    bits = np.unpackbits(mask.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 4 * 0.5 / len(bits) ** 0.5  # uniform words, as 64-bit arithmetic needs


def test_a_mask_between_two_is_theirs_alone():
    keys = [mask_crypto.new_key() for _ in range(3)]
    public = [mask_crypto.public_of(key) for key in keys]
    assert np.array_equal(mask_crypto.pair_mask(keys[0], public[1], 5), mask_crypto.pair_mask(keys[1], public[0], 5))
    assert not (mask_crypto.pair_mask(keys[2], public[1], 5) == mask_crypto.pair_mask(keys[0], public[1], 5)).any()
    box = mask_crypto.sealed(keys[0], public[1], b"shares", b"here")
    assert mask_crypto.unsealed(keys[1], public[0], box, b"here") == b"shares"
    for key, place in ((keys[2], b"here"), (keys[1], b"there")):
        with pytest.raises(Exception):  # noqa: B017 - the library's own
            mask_crypto.unsealed(key, public[0], box, place)

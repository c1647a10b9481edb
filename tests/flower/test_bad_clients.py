"""One bad client never ends a run: whatever it sends is dropped, and it is named."""

import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from evenfed.flower import client_app
from evenfed.flower.roster import Roster
from evenfed.flower.secagg.masking_client import KEYS, MASKED, OPENED, PROTOCOL, SHARES
from local_grid import LocalGrid, node_of, on_flower, sites, travelled
from stranger import extended, fair, run
from worked_example import federation, small_model

pytestmark = pytest.mark.slow
BAD = 2  # the client that misbehaves


def arrays_with(change):
    """A change of the reply's model, array by array."""

    def changed(content):
        for record in content.array_records.values():
            for name in list(record):
                record[name] = change(record[name])

    return changed


def metric(name, value):
    def changed(content):
        for record in content.metric_records.values():
            record[name] = value

    return changed


def garbage(array):
    return Array(array.dtype, array.shape, array.stype, b"no numbers")


def unlike(dtype):
    return lambda array: Array(np.zeros(array.shape, dtype))


def without(kind):
    def changed(content):
        for name in list(getattr(content, f"{kind}_records")):
            del content[name]

    return changed


def second(kind, record):
    def changed(content):
        content[f"another-{kind}"] = record

    return changed


def other_names(content):
    for name in list(content.array_records):
        content[name] = ArrayRecord({"other": Array(np.zeros(3))})


TRAIN = {
    "garbage": arrays_with(garbage),
    "unknown type": arrays_with(lambda a: Array("float99", a.shape, a.stype, a.data)),
    "unknown encoding": arrays_with(lambda a: Array(a.dtype, a.shape, "pickle", a.data)),
    "text": arrays_with(unlike("U3")),
    "whole numbers": arrays_with(unlike("int64")),
    "half precision": arrays_with(unlike("float16")),
    "double precision": arrays_with(unlike("float64")),
    "complex": arrays_with(unlike("complex64")),
    "another shape": arrays_with(lambda a: Array(np.zeros((*a.shape, 2), np.float32))),
    "infinite": arrays_with(lambda a: Array(np.full(a.shape, np.inf, np.float32))),
    "a bomb": arrays_with(lambda a: Array(np.zeros(10**6, np.float32))),
    "other names": other_names,
    "no model": without("array"),
}
STRANGERS = {
    "two models": second("model", ArrayRecord({"a": Array(np.zeros(1))})),
    "no metrics": without("metric"),
    "two records of metrics": second("metrics", MetricRecord({"a": 1})),
    "no size": lambda content: content["metrics"].pop("num-examples"),
    "negative size": metric("num-examples", -3),
    "size zero": metric("num-examples", 0),
    "huge size": metric("num-examples", 10**17),
    "size NaN": metric("num-examples", float("nan")),
    "sizes": metric("num-examples", [1, 2]),
    "loss NaN": metric("evenfed.loss", float("nan")),
    "losses": metric("evenfed.loss", [0.1]),
    "huge loss": metric("evenfed.loss", 1e300),
    "negative loss": metric("evenfed.loss", -0.5),
    "partition NaN": metric("evenfed.partition", float("inf")),
}


def spoiling(kind, change):
    """Replies of the bad client to messages of that kind, changed on the wire."""

    def spoil(reply, client):
        if client == BAD and reply.metadata.message_type == kind and reply.has_content():
            change(reply.content)
        return reply

    return spoil


def one_each_round(changes):
    """Another change of the bad client's update every round."""
    left = iter(changes.values())
    return spoiling("train", lambda content: next(left)(content))


def test_fair_drops_a_bad_update_and_names_the_client(caplog):
    changes = TRAIN | STRANGERS
    strategy = fair("qffl", trips=1)
    result, _ = run(strategy, extended(), rounds=len(changes), spoil=one_each_round(changes))
    bad = strategy.clients.positions[node_of(BAD)]
    for name, record in zip(changes, strategy.records, strict=True):
        assert record.dropped == (bad,), name
        assert record.weights[bad] == 0 and record.weights.sum() > 0
    assert caplog.text.count(" is dropped: ") == len(changes)
    assert all(values.isfinite().all() for values in result.arrays.to_torch_state_dict().values())


def test_our_strategy_drops_a_bad_update_and_names_the_client(caplog):
    records = rounds(one_each_round(TRAIN), rounds=len(TRAIN), trips=1)
    for name, record in zip(TRAIN, records, strict=True):
        assert record.dropped == (BAD,) and record.weights[BAD] == 0 and not record.skipped, name
    assert caplog.text.count("client 2 (site-2) is dropped: ") == len(TRAIN)
    for dtype in ("float16", "float64"):
        assert f"is {dtype}, not float32" in caplog.text
    assert "differ from those sent; unexpected: other; missing: " in caplog.text


def rounds(spoil, **options):
    clients = federation(sizes=(4, 3, 5))
    options = {"rounds": 1, "local_epochs": 1, "wait": 0.3, **options}
    strategy, _, _ = on_flower("qffl", clients, grid=LocalGrid(app_of_three(), 3, spoil=spoil), **options)
    return strategy.records


def test_a_loss_that_cannot_be_weighed_is_dropped():
    values = iter([-0.5, float("nan"), [0.1], 1e300])

    def wrong(content):
        metric("loss", next(values))(content)

    records = rounds(spoiling("query.loss", wrong), rounds=4, evaluate_every=0)
    assert [record.dropped for record in records] == [(BAD,)] * 4
    (record,) = rounds(spoiling("train", metric("loss", -0.5)), trips=1)
    assert record.dropped == (BAD,)


def test_scores_that_are_no_numbers_are_left_out(caplog):
    def all_nan(reply, client):
        if reply.metadata.message_type == "evaluate":
            metric("accuracy", float("nan"))(reply.content)
        return reply

    (record,) = rounds(all_nan)
    assert record.accuracy is None
    (record,) = rounds(spoiling("evaluate", metric("accuracy", 83.0)))
    assert np.isnan(record.accuracy).tolist() == [False, False, True]
    assert "client 2 (site-2) is not scored: its score 83 is not within 0 .. 1" in caplog.text
    assert "round 1/1: objective" in caplog.text and "rounds dropped" in caplog.text
    strategy = fair()
    run(strategy, extended(), rounds=1, spoil=spoiling("evaluate", metric("eval_acc", 83.0)))
    accuracy = strategy.records[0].accuracy
    assert np.isnan(accuracy).sum() == 1 and "eval_acc=83 is not within 0 .. 1" in caplog.text


FACTS = {
    "partition-id": ["zero", 1.5, -1, True, 10**9],
    "num-partitions": ["three", 10**9],
    "train": ["many", -4, 10**17],
    "test": [[1]],
    "parameters": [[], ["other"], "weights"],
    "name": [3],
}
DESCRIPTIONS = [(name, value) for name, values in FACTS.items() for value in values]


def test_sites_that_describe_themselves_wrongly_are_left_out(caplog):
    """Three honest sites, and one liar of each kind."""

    def lie(reply, client):
        if client >= 3:
            name, value = DESCRIPTIONS[client - 3]
            reply.content["config"][name] = value
        return reply

    grid = LocalGrid(app_of_three(), 3 + len(DESCRIPTIONS), spoil=lie)
    for context in grid.contexts.values():
        context.node_config["num-partitions"] = 3
    roster = Roster()
    roster.wait_for_clients(grid, wait=1.0)
    assert roster.clients == 3 and sorted(roster.nodes) == [0, 1, 2]
    liars = {node_of(client) for client in range(3, 3 + len(DESCRIPTIONS))}
    assert set(roster.left_out) == liars and not liars & set(roster.nodes.values())
    assert caplog.text.count("left out: node") == len(liars)


def app_of_three():
    held = sites(federation(sizes=(4, 3, 5)))
    return client_app(small_model, lambda context: held[context.node_config["partition-id"] % 3], device="cpu")


def test_the_first_node_alone_does_not_decide_how_many_there_are():
    def lie(reply, client):
        if client == 3:
            reply.content["config"]["num-partitions"] = 5
        return reply

    grid = LocalGrid(app_of_three(), 4, spoil=lie)
    honest = {node: grid.contexts.pop(node) for node in map(node_of, range(3))}
    for context in honest.values():
        context.node_config["num-partitions"] = 3
    roster = Roster()
    roster.refresh(grid, 1.0)
    assert roster.clients == 5
    grid.contexts.update(honest)
    roster.wait_for_clients(grid, wait=1.0)
    assert roster.clients == 3 and sorted(roster.nodes) == [0, 1, 2]


def test_a_fuzz_of_the_wire_ends_no_run():
    """Replies with random fields of random types, many in one run."""
    draw = np.random.default_rng(0)

    def anything(content):
        values = [float("nan"), -1, 10**18, [1.0, 2.0], 0.5, [], -(10**18)]
        for record in content.metric_records.values():
            for name in list(record):
                if draw.random() < 0.5:
                    record[name] = values[draw.integers(len(values))]
        changes = list(TRAIN.values())
        if draw.random() < 0.5:
            changes[draw.integers(len(changes))](content)

    def spoil(reply, client):
        if client == BAD and reply.has_content():
            if draw.random() < 0.1:
                return Message(Error(code=1, reason="ValueError: patient 4711"), reply_to=travelled_order(reply))
            anything(reply.content)
        return reply

    for trips in (1, 2, 3):
        strategy = fair(trips=trips)
        result, _ = run(strategy, extended(), rounds=3, spoil=spoil)
        assert len(strategy.records) == 3
        assert all(values.isfinite().all() for values in result.arrays.to_torch_state_dict().values())


def travelled_order(reply):
    """A message from the server that the reply could be to."""
    metadata = reply.metadata
    order = Message(RecordDict({"config": ConfigRecord()}), dst_node_id=metadata.src_node_id, message_type="train")
    order.metadata.__dict__["_message_id"] = metadata.reply_to_message_id
    return travelled(order)


def protocol(stage, change):
    """Answers of the bad client in one stage of a masked sum, changed."""

    def changed(content):
        answer = content.config_records[PROTOCOL]
        if stage in answer:
            change(answer)

    return changed


def put(key, value):
    return lambda answer: answer.__setitem__(key, value)


def wrong_shares(answer):
    shares = json.loads(answer[OPENED])
    answer[OPENED] = json.dumps(dict.fromkeys(shares, "00" * 52))


MASKED_ANSWERS = {
    "no key": protocol(KEYS, put(KEYS, json.dumps(["00", "11", "22"]))),
    "a key of low order": protocol(KEYS, put(KEYS, json.dumps(["00" * 32] * 3))),
    "no list": protocol(KEYS, put(KEYS, "7")),
    "boxes for strangers": protocol(SHARES, put(SHARES, json.dumps({"1": "00"}))),
    "no text": protocol(SHARES, put(SHARES, 3.5)),
    "garbage vector": protocol(MASKED, put(MASKED, b"xy")),
    "a number": protocol(MASKED, put(MASKED, 4711)),
    "no hexadecimals": protocol(OPENED, put(OPENED, json.dumps({str(node_of(0)): "zz"}))),
    "wrong shares": protocol(OPENED, wrong_shares),
    "no protocol": lambda content: content.__delitem__(PROTOCOL),
}


def test_malformed_answers_end_no_private_run(caplog):
    """Each in a round of its own, in which the client is lost or the round skipped; the next goes on."""
    names = list(MASKED_ANSWERS)

    def spoil(reply, client):
        if client == BAD and reply.metadata.message_type == "train" and PROTOCOL in reply.content:
            MASKED_ANSWERS[names[len(seen)]](reply.content)
        return reply

    seen = []
    clients = federation(sizes=(4, 3, 5, 6))
    held = sites(clients)
    app = client_app(small_model, lambda context: held[context.node_config["partition-id"]], device="cpu")
    grid = LocalGrid(app, 4, spoil=spoil)
    options = {"private": True, "rounds": len(names), "local_epochs": 1, "evaluate_every": 10**6, "timeout": 0.05}
    on_flower("fedavg", clients, grid=grid, listen=lambda progress: seen.append(progress.record), **options)
    assert len(seen) == len(names)
    for name, record in zip(names, seen, strict=True):
        assert record.skipped == (name == "wrong shares"), name  # the masks cannot be taken off
        assert (BAD in record.dropped) == (name not in ("wrong shares", "no hexadecimals")), name

"""What Flower's log shows of names that come from elsewhere."""

import logging
import re
from pathlib import Path

import pytest

import evenfed.flower
from evenfed.comparison.storage import record_json
from evenfed.flower import Fair, FairStrategy, client_app
from evenfed.flower.logs import shorten_input_errors
from fleet_grid import FleetGrid, node_of
from local_grid import LocalGrid, on_flower, sites
from worked_example import federation, small_model

pytestmark = pytest.mark.slow
ROOM = Path(evenfed.flower.__file__).parent


def test_names_are_text():
    from evenfed.flower.logs import log

    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logger = logging.getLogger("flwr")
    logger.addHandler(handler)
    try:
        log(logging.WARNING, "client %s (%s) is %s: %s", 3, "ward\x1b[31m\nINFO: fine", "dropped", ValueError("a\rb"))
    finally:
        logger.removeHandler(handler)
    assert told == [r"client 3 (ward\x1b[31m\nINFO: fine) is dropped: a\rb"]


def test_all_of_the_room_logs_there():
    for path in ROOM.glob("*.py"):
        if path.name != "logs.py":
            assert not re.search(r"^from flwr.* import .*\blog\b", path.read_text(), re.MULTILINE), path


def skipping_grid():
    """VRed gives clients 0 and 1 nearly all of the positive weight, and client 5 a negative one: they train no more."""
    return FleetGrid(6, mute=[0, 1, 5], kinds=())


def skipping(grid):
    def fall_silent(progress):
        grid.kinds = ("train",)

    return fall_silent


REASON = "the clients that replied have no positive weight left"


def test_who_caused_a_skipped_round_is_named(caplog):
    grid = skipping_grid()
    settings = {"guard": "off", "lr": 0.1, "rounds": 2, "wait": 1, "timeout": 0.1, "evaluate_every": 0}
    strategy = FairStrategy("vred[beta=20]", listen=skipping(grid), **settings)
    strategy.start(grid, grid.start())
    record = strategy.records[1]
    assert record.skipped and record.dropped == (0, 1, 5) and record.caused_by == (0, 1)
    assert record_json.from_json(record_json.to_json(record)).caused_by == (0, 1)
    told = caplog.text
    assert "round 2: client 5 (phone-5) is dropped: no reply" in told and "round 0" not in told
    assert f"round 2 is skipped because of client 0 (phone-0), client 1 (phone-1): {REASON}" in told
    assert f"skipped: {REASON} (because of phone-0, phone-1)" in told


def test_who_caused_a_skipped_round_of_fair_is_named(caplog):
    grid = skipping_grid()
    named = {"loss_in": "evaluate", "loss_from": "train_loss", "min_available_nodes": 6}
    strategy = Fair("vred[beta=20]", guard="off", listen=skipping(grid), **named)
    strategy.start(grid, grid.start(), 2, timeout=0.1)
    record = strategy.records[1]
    blamed = [f"node {strategy.clients.nodes[client]}" for client in record.caused_by]
    assert set(blamed) == {f"node {node_of(0)}", f"node {node_of(1)}"} and len(record.dropped) == 3
    assert f"round 2 is skipped because of {', '.join(blamed)}: {REASON}" in caplog.text


def test_options_that_differ_and_those_without_effect_are_said_and_how_training_broke_down(caplog):
    on_flower("fedavg", weigh_at="average", average=0.5, rounds=2, timeout=0.05, grid=lossy())
    assert "guard=off, rounds=2, lr=0.1, batch_size=4, local_epochs=2" in caplog.text and "prox" not in caplog.text
    assert "weigh_at has no effect: fedavg does not weigh clients by their losses" in caplog.text
    assert "fedavg broke down: all rounds from round 1 on were skipped" in caplog.text
    assert "2 rounds done" in caplog.text


def lossy():
    """All updates are lost."""
    held = sites(federation())
    app = client_app(small_model, lambda context: held[context.node_config["partition-id"]], device="cpu")
    return LocalGrid(app, 5, spoil=lambda reply, _: None if reply.metadata.message_type == "train" else reply)


def test_an_error_in_the_options_is_one_line_without_a_traceback(caplog):
    shorten_input_errors()
    for error in (evenfed.InputError("lr=-1: give a number above 0"), KeyError("a bug")):
        try:
            raise error
        except (evenfed.InputError, KeyError):
            logging.getLogger("flwr").exception("ServerApp raised an exception")
    first, second = caplog.records[-2:]
    assert first.getMessage() == "lr=-1: give a number above 0" and first.exc_info is None
    assert second.exc_info is not None

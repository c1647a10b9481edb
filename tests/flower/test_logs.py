"""What Flower's log shows of names that come from elsewhere."""

import logging
import re
from pathlib import Path

import pytest

import evenfed.flower

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

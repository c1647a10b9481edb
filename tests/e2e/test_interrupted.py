"""A command that is interrupted says so and exits with 130, whatever it was doing."""

import os
import signal

import pytest

from command import SMALL
from evenfed.comparison.storage.disk_sink import DiskSink
from evenfed.comparison.tuning import tune


@pytest.fixture
def press(monkeypatch):
    """Ctrl-C, so many times, when a method is called; it raises, as in a new process, whatever other tests left."""
    left = signal.signal(signal.SIGINT, signal.default_int_handler)

    def at(owner, name, times):
        whole = getattr(owner, name)

        def interrupted(*arguments):
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
            return whole(*arguments)

        monkeypatch.setattr(owner, name, interrupted)

    yield at
    signal.signal(signal.SIGINT, left or signal.default_int_handler)


SMALLEST = ["--algorithms", "fedavg", "--seeds", 1, "--rounds", 2, *SMALL]


@pytest.mark.parametrize(
    ("times", "told"), [(1, "every finished round is saved"), (2, "what is not saved yet is lost")]
)
def test_a_comparison(press, evenfed, times, told):
    press(DiskSink, "after_round", times)
    done = evenfed("compare", *SMALLEST)
    assert done.returncode == 130 and told in done.stderr and "evenfed compare --algorithms" in done.stderr


def test_a_search(press, evenfed):
    press(tune._CandidateTrainer, "train", 1)
    done = evenfed("tune", *SMALLEST)
    assert done.returncode == 130 and "what is not saved yet is lost" in done.stderr and "evenfed tune" in done.stderr

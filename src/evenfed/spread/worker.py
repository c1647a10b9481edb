"""The worker's side on this machine: an errand on stdin, its outcome on stdout; it ends with whoever started it."""

import os
import signal
import sys
import threading

from .remote_call import LENGTH_BYTES, perform


def main() -> None:
    """Carry out the errand that the process before has sent."""
    sys.argv = sys.argv[2:] or ["evenfed"]  # the command that is noted as the origin of results
    outcome_stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print is no outcome
    source = sys.stdin.buffer
    length = int.from_bytes(source.read(LENGTH_BYTES), "big")
    package = source.read(length)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    watching = threading.Thread(target=_end_with_the_other, daemon=True)
    watching.start()
    outcome = perform(package)
    with outcome_stream:
        outcome_stream.write(outcome.to_json())
    sys.stderr.flush()
    os._exit(0)  # not through the threads of others


def _end_with_the_other() -> None:
    """Stop, saving what there is, once whoever started this has closed the input or is gone."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)

"""Calls callbacks after a round, in the simulator and on Flower."""

from collections.abc import Sequence

from .progress import Callback, Progress


def tell(callbacks: Sequence[Callback], progress: Progress) -> list[Exception]:
    """Call them all and return the errors they raised. StopIteration is no error: it ends the run."""
    errors: list[Exception] = []
    for callback in callbacks:
        try:
            callback.round(progress)
        except StopIteration as stop:
            progress.stop(str(stop) or "StopIteration from a callback")
        except Exception as error:
            errors.append(error)
    return errors

"""Callbacks told of a round, wherever the run takes place."""

from collections.abc import Sequence

from .progress import Callback, Progress


def tell(callbacks: Sequence[Callback], progress: Progress) -> list[Exception]:
    """Everyone is told, whatever another does; the errors they raised. StopIteration is none: it ends that run."""
    errors: list[Exception] = []
    for callback in callbacks:
        try:
            callback.round(progress)
        except StopIteration as stop:
            progress.stop(str(stop) or "StopIteration from a callback")
        except Exception as error:
            errors.append(error)
    return errors

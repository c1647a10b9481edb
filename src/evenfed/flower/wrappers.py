"""Flower's privacy wrappers around a strategy: which of them fit private rounds, and what a run's header says."""

from typing import Any

from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, Strategy

from ..core.errors import InputError


def _check(wrapped: Strategy) -> None:
    """Refuse Flower's privacy wrappers that look into single replies."""
    if not isinstance(wrapped, DifferentialPrivacyClientSideFixedClipping):
        raise InputError(
            f"{type(wrapped).__name__} looks into single replies, which private=True hides; use "
            "DifferentialPrivacyClientSideFixedClipping with fixedclipping_mod, which clips before the mask"
        )


def described(wrapped: Strategy, private: bool) -> dict[str, Any]:
    """The wrapper's name and settings, before its first round; refused if it does not fit."""
    if private:
        _check(wrapped)
    settings: dict[str, Any] = {"wrapper": type(wrapped).__name__}
    for name, value in vars(wrapped).items():
        is_setting = isinstance(value, int | float | str)
        if is_setting and not name.startswith("_"):
            settings[name] = value
    return settings

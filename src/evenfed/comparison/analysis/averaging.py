"""Entries that deploy an average of their models, and what each is compared with."""

from .configuration import unaveraged, without
from .findings import BASELINE, Entry, Findings


def averaged_rivals(findings: Findings) -> dict[str, str]:
    """Entries that deploy an average, and FedAvg that does: label -> label, of the same decay if there is one.

    Only FedAvg's entry that is the baseline but for the average counts: not one at another learning rate.
    """
    averaged = {}
    for label, twin in unaveraged(findings.configs).items():
        if twin == findings.baseline.label:
            decay = findings.named(label).average
            averaged[decay] = label
    if not averaged:
        return {}
    any_decay = next(iter(averaged.values()))
    rivals = {}
    for entry in findings.entries:
        if entry.average is not None and entry.method != BASELINE:
            rivals[entry.label] = averaged.get(entry.average, any_decay)
    return rivals


def one_decay_each(findings: Findings) -> list[Entry]:
    """Of entries that differ in the decay of their average alone, the one with the smallest; FedAvg's not."""
    smallest: dict[str, Entry] = {}
    for label in averaged_rivals(findings):
        entry = findings.named(label)
        rest = repr(without(entry.config, "average", "seed"))
        known = smallest.get(rest)
        if known is None or _decay(entry) < _decay(known):
            smallest[rest] = entry
    return list(smallest.values())


def before_and_after(findings: Findings) -> list[Entry]:
    """The planned entries, each followed by the same deploying an average; of several decays, by the smallest."""
    current_of = unaveraged(findings.configs)
    averaged: dict[str, Entry] = {}  # by the label of the current one
    for label, current in current_of.items():
        entry = findings.named(label)
        known = averaged.get(current)
        if known is None or _decay(entry) < _decay(known):
            averaged[current] = entry
    entries = []
    for entry in findings.planned:
        if entry.label in current_of:
            continue
        entries.append(entry)
        if entry.label in averaged:
            entries.append(averaged[entry.label])
    return entries


def _decay(entry: Entry) -> float:
    return entry.average or 0.0

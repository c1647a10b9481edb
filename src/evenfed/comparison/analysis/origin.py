"""Where audited results come from: another system, of which clients' figures are known and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Origin:
    """What was read of another system's results."""

    facts: tuple[str, ...]  # what was read, and as what
    groups: Mapping[str, str] = field(default_factory=dict)  # of clients, by name
    has_sizes: bool = False  # whether it is known on how many examples clients were judged
    source: Mapping[str, str] = field(default_factory=dict)  # the file: its name, size, hash and date
    command: str = ""  # that audits it again; empty if it is no file

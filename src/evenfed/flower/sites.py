"""Which sites may join: a file that gives each its place, whatever the site says of itself.

[[site]]
partition = 0
name = "ward 3"                  # optional
key = "keys/ward-3.pub"          # the site's public key: a file in the same folder, or its text; or node = 123
largest = 5000                   # optional: more training examples than this are not believed
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from flwr.serverapp import Grid

from ..core.errors import InputError, unknown
from ..core.files import plain_file
from ..core.guard import Clip
from ..core.server import Record
from .logs import log

FIELDS = ("partition", "name", "key", "node", "largest")
_PUBLIC = ("ssh-", "ecdsa-", "-----BEGIN")  # how the text of a key begins


@dataclass(frozen=True)
class AllowedSite:
    """One line of the file."""

    partition: int
    name: str | None = None
    key: bytes | None = None  # PEM, as Flower keeps it
    node: int | None = None
    largest: int | None = None  # training examples


@dataclass(frozen=True)
class SiteList:
    """All sites that may join."""

    path: Path
    sites: tuple[AllowedSite, ...]  # by partition

    def __len__(self) -> int:
        return len(self.sites)

    def name(self, partition: int) -> str:
        """Of the site at this place."""
        return self.sites[partition].name or f"client {partition}"

    def of(self, grid: Grid, nodes: Iterable[int]) -> dict[int, AllowedSite]:
        """Node -> its site, of those that are in the file."""
        by_key = {site.key: site for site in self.sites if site.key is not None}
        by_node = {site.node: site for site in self.sites if site.node is not None}
        if by_key:
            for node in grid.get_nodes():
                site = by_key.get(bytes(node.public_key))
                if site is not None:
                    by_node.setdefault(node.node_id, site)
        return {node: by_node[node] for node in nodes if node in by_node}


class Admission:
    """Who of those that connect may join: everyone, or the sites of a list. Who may not is named, once."""

    def __init__(self, listed: SiteList | None = None) -> None:
        self.listed = listed
        self.sites: dict[int, AllowedSite] = {}  # node -> its site
        self.turned_away: dict[int, str] = {}  # node -> reason
        self.cut: set[int] = set()  # clients that said they have more examples than they may
        self._cuts: list[Clip] = []  # for the next record
        self._refusals: list[str] = []

    @classmethod
    def of(cls, path: Path | str | None) -> "Admission":
        """With the list in this file, if one is given."""
        return cls(None if path is None else read_sites(path))

    def admitted(self, grid: Grid, nodes: Iterable[int]) -> list[int]:
        """Those of the nodes that may join."""
        if self.listed is None:
            return list(nodes)
        connected = list(nodes)
        new = set(connected) - self.sites.keys() - self.turned_away.keys()
        if new:
            self.sites |= self.listed.of(grid, new)
        for node in sorted(new - self.sites.keys()):
            reason = f"it is not in {self.listed.path.name}"
            self.turned_away[node] = reason
            self.refuse(node, reason, "left out")
        return [node for node in connected if node in self.sites]

    def refuse(self, node: int, reason: object, how: str = "refused") -> None:
        """Say that a node does not take part, in the log and in the next record."""
        self._refusals.append(f"node {node}: {reason}")
        log(WARNING, "%s: node %s: %s", how, node, reason)

    def check_place(self, node: int, partition: int) -> None:
        """Refuse a site that claims another's place."""
        site = self.sites.get(node)
        if site is None or self.listed is None:
            return
        place = site.partition
        if place != partition:
            file = self.listed.path.name
            raise InputError(
                f"it says partition-id={partition}, and {file} gives it {place}; start it with partition-id={place}"
            )

    def believed(self, node: int, client: int, size: float) -> float:
        """So many training examples of those that a client says it has."""
        site = self.sites.get(node)
        if site is None or self.listed is None:
            return size
        if site.largest is None or size <= site.largest:
            return size
        if client not in self.cut:
            self.cut.add(client)
            clip = Clip(client, "size", reported=float(size), counted=float(site.largest))
            self._cuts.append(clip)
            file = self.listed.path.name
            text = "client %s says %s training examples, and %s allows %s: those count"
            log(WARNING, text, client, f"{size:g}", file, site.largest)
        return site.largest

    def noted(self, record: Record) -> Record:
        """The record, with those that were refused since the last one, and sizes that were cut."""
        refused = tuple(self._refusals)
        clipped = (*self._cuts, *record.clipped)
        self._refusals = []
        self._cuts = []
        return record.but(refused=refused, clipped=clipped)


def read_sites(path: Path | str) -> SiteList:
    """The file, checked: places 0 .. n-1, each given once."""
    file = plain_file(Path(path))
    if not file.exists():
        raise InputError(f"sites={str(path)!r}: there is no such file; it lists a [[site]] for each that may join")
    try:
        tables = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not TOML: {error}") from None
    rows = tables.get("site")
    others = [name for name in tables if name != "site"]
    if others or not isinstance(rows, list) or not rows:
        raise InputError(f"{file}: give one [[site]] for each site, with partition and key (or node), and nothing else")
    sites = []
    for number, row in enumerate(rows, 1):
        try:
            sites.append(_site(row, file.parent))
        except InputError as error:
            raise InputError(f"{file}, site {number}: {error}") from None
    _check_unlike(file, sites)
    sites.sort(key=lambda site: site.partition)
    return SiteList(file, tuple(sites))


def _site(row: Any, folder: Path) -> AllowedSite:
    if not isinstance(row, dict):
        raise InputError("it is no table; write [[site]]")
    for field in row:
        if field not in FIELDS:
            raise unknown("field", field, FIELDS)
    if ("key" in row) == ("node" in row):
        raise InputError("give key or node, one of the two: who the site is")
    partition = _whole(row, "partition", 0)
    if partition is None:
        raise InputError("partition is missing: its place, 0 .. n-1")
    name = row.get("name")
    if name is not None and not isinstance(name, str):
        raise InputError(f"name={name!r}: give text")
    return AllowedSite(
        partition=partition,
        name=name,
        key=_key(row["key"], folder) if "key" in row else None,
        node=_whole(row, "node", 0),
        largest=_whole(row, "largest", 1),
    )


def _whole(row: Mapping[str, Any], name: str, least: int) -> int | None:
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name}={value!r}: give a whole number of at least {least}")
    return value


def _key(value: Any, folder: Path) -> bytes:
    """A public key as Flower keeps it, from its text or a file."""
    if not isinstance(value, str):
        raise InputError(f"key={value!r}: give the path of a public key, or its text")
    data = value.encode()
    if not value.startswith(_PUBLIC):
        file = plain_file(folder / value)
        if not file.exists():
            raise InputError(f"key={value!r}: there is no file {file}; give the site's public key (site-K/key.pub)")
        data = file.read_bytes()
    try:
        if data.startswith(b"-----BEGIN PUBLIC"):
            key: Any = serialization.load_pem_public_key(data)
        else:
            key = serialization.load_ssh_public_key(data)
    except Exception as error:  # whatever unknown bytes may cause
        kind = type(error).__name__
        raise InputError(
            f"key={value[:40]!r}: not a public key ({kind}); give site-K/key.pub, never site-K/key"
        ) from None
    pem: bytes = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem


def _check_unlike(file: Path, sites: list[AllowedSite]) -> None:
    count = len(sites)
    partitions = sorted(site.partition for site in sites)
    if partitions != list(range(count)):
        listed = ", ".join(map(str, partitions[:8]))
        raise InputError(f"{file}: partitions {listed}; {count} sites have the places 0 .. {count - 1}, each once")
    for field in ("key", "node", "name"):
        seen = set()
        for site in sites:
            value = getattr(site, field)
            if value is not None and value in seen:
                raise InputError(f"{file}: two sites have the same {field}; each has its own")
            seen.add(value)

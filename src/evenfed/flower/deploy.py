"""`evenfed flower deploy-files`: keys, certificates, a proxy and units for a federation on real machines."""

import ipaddress
import os
import re
import shlex
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ..core.errors import InputError
from . import keys
from .filling import filled
from .quiet import quiet_env

PORT = 9092  # where Flower's fleet was before 1.41 put all of its services on one port
BIN = "/opt/evenfed/bin"
LOOPBACK = ["127.0.0.1", "localhost"]
# what a SuperNode with a registered key calls; `register-node` and `unregister-node` are for those without
FLEET = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
CONFIG = """[superlink]
default = "ours"

[superlink.ours]
address = "127.0.0.1:8000"
root-certificates = "/etc/flower/ca.crt"
"""
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"


@dataclass(frozen=True)
class Federation:
    """A server, which sites dial at `host` and `port`, and the sites' names in the order of their partitions."""

    host: str
    port: int
    sites: tuple[str, ...]
    bin: str = BIN
    signed: bool = False  # sites run apps alone that were signed with the release key

    @property
    def server(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"


def federation(server: str, sites: str, bin_folder: str = BIN, signed: bool = False) -> Federation:
    """As named on the command line.

    >>> federation("fed.example.org", "2")
    Federation(host='fed.example.org', port=9092, sites=('site-0', 'site-1'), bin='/opt/evenfed/bin', signed=False)
    >>> federation("[2001:db8::1]:443", "north,south").server
    '[2001:db8::1]:443'
    """
    host, port = _address(server)
    if not re.fullmatch(r"/[\w./+-]+", bin_folder, re.ASCII):
        raise InputError(f"--bin {bin_folder!r} is no absolute folder of plain characters; give one such as {BIN}")
    return Federation(host, port, _names(sites), bin_folder.rstrip("/"), signed)


def write_files(out: Path, chosen: Federation, force: bool = False) -> list[Path]:
    """Write all files below `out`, and return their paths.

    Where there are some already, `force` renews certificates and texts; the authority and the keys of sites stay.
    """
    _check_room(out, force)
    if (out / "trusted.yaml").exists() and not chosen.signed:
        raise InputError(f"{out} was made with --signed; give that again, or sites would no longer refuse other apps")
    folder = Folder(out)
    try:
        _check_keys(folder, chosen)
        authority = _authority(folder)
        _server_files(folder, chosen, authority)
        if chosen.signed:
            _release_key(folder)
        for partition, site in enumerate(chosen.sites):
            _site_files(folder, chosen, site, partition)
        _sites_file(folder, chosen)
        repeat = f"evenfed flower deploy-files --server {chosen.server} --sites {','.join(chosen.sites)}"
        words = _words(chosen)
        signed = " --signed" if chosen.signed else ""
        words["REPEAT"] = f"{repeat}{signed} --out {shlex.quote(out.name)} --force"
        folder.write("README.md", _text("README.md", words))
    except OSError as error:
        raise InputError(f"{out} cannot be written to ({error.strerror}); give another folder") from None
    return folder.written


class Folder:
    """Where files go; what is private can be read by its owner alone from its first byte on."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.written: list[Path] = []

    def write(self, place: str, content: bytes | str, private: bool = False) -> None:
        path = self.out / place
        self.out.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(path.name + ".new")
        beside.unlink(missing_ok=True)
        mode = 0o600 if private else 0o644
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        beside.replace(path)
        self.written.append(path)

    def has(self, place: str) -> bool:
        return (self.out / place).exists()

    def read(self, place: str) -> bytes:
        return (self.out / place).read_bytes()


def _check_room(out: Path, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is not a folder; give a new one")
    if not out.exists():
        return
    made = (out / "ca.crt").exists()
    if made and not force:
        raise InputError(
            f"{out} holds a federation's files already; give a new folder, or --force to renew certificates and "
            "units there (the authority and the keys of sites stay)"
        )
    entries = {entry.name for entry in out.iterdir()}
    if not made and entries - {"sites"}:  # public keys that sites have sent may be there
        raise InputError(f"{out} is not empty; give a new folder")


def _check_keys(folder: Folder, chosen: Federation) -> None:
    """Those that sites have sent, before anything is written."""
    for site in chosen.sites:
        place = f"sites/{site}/key.pub"
        if folder.has(place):
            keys.read_public(folder.read(place), site)


def _authority(folder: Folder) -> tuple[keys.Certificate, keys.PrivateKey]:
    if folder.has("ca.crt"):
        if not folder.has("ca.key"):
            raise InputError(f"{folder.out / 'ca.key'} is missing; put it back while certificates are renewed")
        return keys.read_authority(folder.read("ca.crt"), folder.read("ca.key"))
    key = keys.new_key()
    certificate = keys.authority(key)
    folder.write("ca.key", keys.pem(key), private=True)
    folder.write("ca.crt", keys.pem(certificate))
    return certificate, key


def _server_files(
    folder: Folder,
    chosen: Federation,
    authority: tuple[keys.Certificate, keys.PrivateKey],
) -> None:
    words = _words(chosen)
    issuer, issuer_key = authority
    folder.write("server/ca.crt", keys.pem(issuer))
    for name, hosts in (("proxy", [chosen.host]), ("superlink", LOOPBACK)):
        key = keys.new_key()
        certificate = keys.certificate(name, hosts, key, issuer, issuer_key)
        folder.write(f"server/{name}.key", keys.pem(key), private=True)
        folder.write(f"server/{name}.crt", keys.pem(certificate))
    for file in ("nginx.conf", "flower-superlink.service"):
        folder.write(f"server/{file}", _text(file, words))
    folder.write("server/install.sh", _text("server-install.sh", words))
    folder.write("server/quiet.env", quiet_env())
    folder.write("server/config.toml", CONFIG)


def _sites_file(folder: Folder, chosen: Federation) -> None:
    """Who has which place, whatever a node says of itself."""
    tables = []
    for partition, site in enumerate(chosen.sites):
        key = folder.read(f"server/sites/{site}.pub").decode().strip()
        tables.append(f"[[site]]\npartition = {partition}\nname = \"{site}\"\nkey = '{key}'\n")
    folder.write("server/sites.toml", "\n".join(tables))


def _release_key(folder: Folder) -> None:
    if folder.has("trusted.yaml"):
        return
    key = keys.new_release_key()
    public = keys.ssh_public(key, "release").decode().strip()
    folder.write("release.key", keys.ssh_private(key), private=True)
    folder.write("trusted.yaml", f"{keys.key_name(key)}: '{public}'\n")


def _site_files(folder: Folder, chosen: Federation, site: str, partition: int) -> None:
    place = f"sites/{site}"
    words = _words(chosen, site)
    if not folder.has(f"{place}/key.pub"):
        key = keys.new_key()
        folder.write(f"{place}/key", keys.ssh_private(key), private=True)
        folder.write(f"{place}/key.pub", keys.ssh_public(key, site))
    public = keys.read_public(folder.read(f"{place}/key.pub"), site)
    folder.write(f"server/sites/{site}.pub", public)
    if not folder.has(f"{place}/tls.key"):
        tls_key = keys.new_key()
        folder.write(f"{place}/tls.crt", keys.pem(keys.self_signed(site, LOOPBACK, tls_key)))
        folder.write(f"{place}/tls.key", keys.pem(tls_key), private=True)
        folder.write(f"{place}/secret", keys.new_secret(), private=True)
    folder.write(f"{place}/ca.crt", folder.read("ca.crt"))
    node_config = f"partition-id={partition} num-partitions={len(chosen.sites)}"
    folder.write(f"{place}/site.env", f"NODE_CONFIG='{node_config}'\n")
    folder.write(f"{place}/quiet.env", quiet_env())
    for file in ("flower-supernode.service", "flower-superexec.service"):
        folder.write(f"{place}/{file}", _text(file, words))
    folder.write(f"{place}/install.sh", _text("site-install.sh", words))
    if chosen.signed:
        folder.write(f"{place}/trusted.yaml", folder.read("trusted.yaml"))


def _words(chosen: Federation, site: str = "") -> dict[str, str]:
    """What the templates leave open."""
    listen = str(chosen.port)
    if ":" in chosen.host:
        listen = f"[::]:{chosen.port}"
    signing = _template("signing" if chosen.signed else "unsigned")
    return {
        "SERVER": chosen.server,
        "HOST": _bracketed(chosen.host),
        "PORT": str(chosen.port),
        "LISTEN": listen,
        "BIN": chosen.bin,
        "SITE": site,
        "FLEET": "|".join(FLEET),
        "TRUST": "--trusted-entities /etc/flower-site/trusted.yaml \\" if chosen.signed else "",
        "TRUSTED": 'install -m 644 trusted.yaml "$D/etc/flower-site"' if chosen.signed else "",
        "SIGNING": filled(signing.strip(), {"BIN": chosen.bin}),
        "HARDENING": _template("hardening").strip(),
    }


def _template(name: str) -> str:
    template = resources.files(__package__) / "template" / "deploy"
    return (template / f"{name}.txt").read_text()


def _text(name: str, words: dict[str, str]) -> str:
    """The template, without lines that hold nothing but an empty word."""
    lines = []
    for line in _template(name).splitlines(keepends=True):
        if words.get(line.strip()) != "":
            lines.append(line)
    return filled("".join(lines), words)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _address(server: str) -> tuple[str, int]:
    """Host and port of `fed.example.org`, `192.0.2.7:443` or `[2001:db8::1]:443`."""
    split = re.fullmatch(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:]*))(?::(?P<port>\d{1,5}))?", server)
    host = server
    port = PORT
    if split is not None:
        host = split["v6"] or split["host"]
        port = int(split["port"] or PORT)
    if not _is_host(host):
        raise InputError(
            f"--server {server!r} is no host; give the name or IP address that sites dial, as fed.example.org, "
            "192.0.2.7 or [2001:db8::7], with :PORT if it is not 9092"
        )
    if not 1 <= port <= 65535 or port == 8000:
        raise InputError(f"--server {server!r}: the port must be from 1 to 65535, and not 8000, the SuperLink's own")
    return host.lower(), port


def _is_host(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return not address.is_unspecified and "%" not in host
    labels = host.lower().split(".")
    named = all(re.fullmatch(_LABEL, label) for label in labels)
    only_numbers = labels[-1].isdigit()
    return named and not only_numbers and len(host) <= 253


def _names(sites: str) -> tuple[str, ...]:
    """`3`, or names with commas between them."""
    if sites.isascii() and sites.isdigit():
        count = int(sites[:6])
        if not 1 <= count <= 10_000:
            raise InputError(f"--sites {sites}: their number must be from 1 to 10000")
        return tuple(f"site-{k}" for k in range(count))
    names = tuple(name.strip() for name in sites.split(","))
    for name in names:
        if not re.fullmatch(_LABEL, name):
            raise InputError(
                f"--sites: {name!r} cannot name a site; use small letters, digits and '-', as in north-ward,south-ward"
            )
    if len(set(names)) < len(names):
        raise InputError(f"--sites {sites}: one of them is there twice; every site needs a name of its own")
    return names

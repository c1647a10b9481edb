"""`evenfed flower deploy-files`: keys, certificates, a proxy and units for a federation on real machines."""

import ipaddress
import os
import re
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ...core.errors import InputError
from ...core.files import BESIDE
from ..no_telemetry import quiet_env
from . import certificates
from .new import filled

PORT = 9092  # where Flower's fleet was before 1.41 put all of its services on one port
BIN = "/opt/evenfed/bin"
PRIVATE = 0o600  # the mode of a file that its owner alone reads
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
TITLE = "# A federation at "  # of README.md, before the server's address
SERVER_FILES = {  # name -> template
    "nginx.conf": "nginx.conf",
    "flower-superlink.service": "flower-superlink.service",
    "install.sh": "server-install.sh",
}
SITE_FILES = {
    "flower-supernode.service": "flower-supernode.service",
    "flower-superexec.service": "flower-superexec.service",
    "install.sh": "site-install.sh",
}
CONFIG = """
[superlink.ours]
address = "127.0.0.1:8000"
root-certificates = "/etc/flower/ca.crt"
"""
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"


@dataclass(frozen=True)
class DeploymentSpec:
    """A server, which sites dial at `host` and `port`, and the sites' names in the order of their partitions."""

    host: str
    port: int
    sites: tuple[str, ...]
    bin: str = BIN
    signed: bool = False  # sites run apps alone that were signed with the release key

    @property
    def server(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"


def federation(server: str, sites: str, bin_folder: str = BIN, signed: bool = False) -> DeploymentSpec:
    """As named on the command line.

    >>> federation("fed.example.org", "2")
    DeploymentSpec(host='fed.example.org', port=9092, sites=('site-0', 'site-1'), bin='/opt/evenfed/bin', signed=False)
    >>> federation("[2001:db8::1]:443", "north,south").server
    '[2001:db8::1]:443'
    """
    host, port = _address(server)
    if not re.fullmatch(r"/[\w./+-]+", bin_folder, re.ASCII):
        raise InputError(f"--bin {bin_folder!r} is no absolute folder of plain characters; give one such as {BIN}")
    return DeploymentSpec(host, port, _names(sites), bin_folder.rstrip("/"), signed)


def write_files(out: Path, chosen: DeploymentSpec, force: bool = False) -> list[Path]:
    """Write all files below `out`, and return their paths.

    Where there are some already, `force` renews certificates and texts; the authority and the keys of sites stay.
    """
    _check_room(out, force)
    folder = OutputFolder(out, [])
    if folder.has("trusted.yaml") and not chosen.signed:
        raise InputError(f"{out} was made with --signed; give that again, or sites would no longer refuse other apps")
    _check_sites(folder, chosen)
    _check_server(folder, chosen)
    try:
        _check_keys(folder, chosen)
        _write(folder, chosen)
    except OSError as error:
        raise InputError(f"{out} cannot be written to ({error.strerror}); give another folder") from None
    return folder.written


@dataclass(frozen=True)
class OutputFolder:
    """Where files go; what is private can be read by its owner alone from its first byte on."""

    path: Path
    written: list[Path]

    def below(self, place: str) -> "OutputFolder":
        return OutputFolder(self.path / place, self.written)

    def write(self, name: str, content: bytes | str, mode: int = 0o644) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.path / name
        beside = path.with_name(name + BESIDE)
        beside.unlink(missing_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        if isinstance(content, str):
            content = content.encode()
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        beside.replace(path)
        self.written.append(path)

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()


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


def _check_sites(folder: OutputFolder, chosen: DeploymentSpec) -> None:
    """Refuse to drop a site by leaving its name out: its key would still be registered, and places would move."""
    known = {path.stem for path in folder.path.glob("server/sites/*.pub")}
    for path in folder.path.glob("sites/*/key.pub"):
        known.add(path.parent.name)
    left_out = sorted(known.difference(chosen.sites))
    if left_out:
        listed = ", ".join(left_out)
        raise InputError(
            f"--sites leaves out {listed}, of which {folder.path} holds keys; name all sites, or, to drop one, remove "
            "sites/NAME and server/sites/NAME.pub there first"
        )


def _check_server(folder: OutputFolder, chosen: DeploymentSpec) -> None:
    """Refuse another address: sites would still dial the old one."""
    if not folder.has("README.md"):
        return
    title = folder.read("README.md").decode().partition("\n")[0]
    server = title.removeprefix(TITLE)
    if title.startswith(TITLE) and server != chosen.server:
        raise InputError(
            f"--server {chosen.server}: the files in {folder.path} are for {server}, which their sites dial; give that "
            "one, or, to move the server, remove README.md there first and install at every site again"
        )


def _check_keys(folder: OutputFolder, chosen: DeploymentSpec) -> None:
    """Those that sites have sent, before anything is written."""
    for site in chosen.sites:
        own = folder.below(f"sites/{site}")
        if own.has("key.pub"):
            certificates.read_public(own.read("key.pub"), site)


def _write(folder: OutputFolder, chosen: DeploymentSpec) -> None:
    issuer, issuer_key = _authority(folder)
    if chosen.signed:
        _release_key(folder)
    server = folder.below("server")
    hosts_of = {"proxy": [chosen.host], "superlink": LOOPBACK}
    for name, hosts in hosts_of.items():
        key = certificates.new_key()
        certificate = certificates.certificate(name, hosts, key, issuer, issuer_key)
        server.write(f"{name}.key", certificates.pem(key), PRIVATE)
        server.write(f"{name}.crt", certificates.pem(certificate))
    authority = certificates.pem(issuer)
    registered = server.below("sites")
    places = []
    for partition, site in enumerate(chosen.sites):
        own = folder.below(f"sites/{site}")
        if registered.has(f"{site}.pub") and not own.has("key.pub"):  # its folder was sent away: its key stays
            own.write("key.pub", registered.read(f"{site}.pub"))
        public = _site_keys(own, site)
        registered.write(f"{site}.pub", public)
        places.append(_place(partition, site, public))
        node_config = f"partition-id={partition} num-partitions={len(chosen.sites)}"
        own.write("site.env", f"NODE_CONFIG='{node_config}'\n")
        own.write("ca.crt", authority)
        if chosen.signed:
            own.write("trusted.yaml", folder.read("trusted.yaml"))
        _write_texts(own, SITE_FILES, _words(chosen, site))
    server.write("sites.toml", "\n".join(places))
    server.write("config.toml", CONFIG)
    server.write("ca.crt", authority)
    words = _words(chosen)
    _write_texts(server, SERVER_FILES, words)
    words["REPEAT"] = _repeated(folder, chosen)
    folder.write("README.md", _text("README.md", words))


def _authority(folder: OutputFolder) -> tuple[certificates.Certificate, certificates.PrivateKey]:
    if folder.has("ca.crt"):
        if not folder.has("ca.key"):
            raise InputError(f"{folder.path / 'ca.key'} is missing; put it back while certificates are renewed")
        return certificates.read_authority(folder.read("ca.crt"), folder.read("ca.key"))
    key = certificates.new_key()
    certificate = certificates.authority(key)
    folder.write("ca.key", certificates.pem(key), PRIVATE)
    folder.write("ca.crt", certificates.pem(certificate))
    return certificate, key


def _release_key(folder: OutputFolder) -> None:
    if folder.has("trusted.yaml"):
        return
    key = certificates.new_release_key()
    name = certificates.key_name(key)
    public = certificates.ssh_public(key, "release").decode().strip()
    folder.write("release.key", certificates.ssh_private(key), PRIVATE)
    folder.write("trusted.yaml", f"{name}: '{public}'\n")


def _site_keys(own: OutputFolder, site: str) -> bytes:
    """What the site has kept, else new; returns its public key."""
    if not own.has("key.pub"):
        key = certificates.new_key()
        own.write("key", certificates.ssh_private(key), PRIVATE)
        own.write("key.pub", certificates.ssh_public(key, site))
    if not own.has("tls.key"):
        tls_key = certificates.new_key()
        certificate = certificates.self_signed(site, LOOPBACK, tls_key)
        own.write("tls.crt", certificates.pem(certificate))
        own.write("secret", secrets.token_hex(32), PRIVATE)  # shared with the process that runs apps
        own.write("tls.key", certificates.pem(tls_key), PRIVATE)
    return certificates.read_public(own.read("key.pub"), site)


def _place(partition: int, site: str, public: bytes) -> str:
    """Who has which place, whatever a node says of itself: a table of sites.toml."""
    key = public.decode().strip()
    return f"[[site]]\npartition = {partition}\nname = \"{site}\"\nkey = '{key}'\n"


def _write_texts(folder: OutputFolder, files: Mapping[str, str], words: dict[str, str]) -> None:
    for name, template in files.items():
        folder.write(name, _text(template, words))
    folder.write("quiet.env", quiet_env())


def _repeated(folder: OutputFolder, chosen: DeploymentSpec) -> str:
    """The command that renews all this."""
    words = ["evenfed", "flower", "deploy-files", "--server", chosen.server]
    words += ["--sites", ",".join(chosen.sites)]
    if chosen.signed:
        words.append("--signed")
    words += ["--out", folder.path.name, "--force"]
    return shlex.join(words)


def _words(chosen: DeploymentSpec, site: str = "") -> dict[str, str]:
    """What the templates leave open."""
    listen = str(chosen.port)
    if ":" in chosen.host:
        listen = f"[::]:{chosen.port}"
    signing = _template("signing" if chosen.signed else "unsigned")
    return {
        "SERVER": chosen.server,
        "HOST": _bracketed(chosen.host),
        "COUNT": str(len(chosen.sites)),
        "PORT": str(chosen.port),
        "LISTEN": listen,
        "BIN": chosen.bin,
        "VENV": str(Path(chosen.bin).parent),
        "SITE": site,
        "FLEET": "|".join(FLEET),
        "TRUST": "--trusted-entities /etc/flower-site/trusted.yaml \\" if chosen.signed else "",
        "TRUSTED": 'install -m 644 trusted.yaml "$D/etc/flower-site"' if chosen.signed else "",
        "SIGNING": filled(signing.strip(), {"BIN": chosen.bin}),
        "HARDENING": _template("hardening").strip(),
    }


def _template(name: str) -> str:
    template = resources.files("evenfed.flower") / "template" / "deploy"
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

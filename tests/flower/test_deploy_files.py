"""`evenfed flower deploy-files`: what it writes, what it keeps, and what it refuses; the deployment's test runs it."""

import configparser
import datetime
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from evenfed import InputError
from evenfed.flower.deployment import certificates
from evenfed.flower.deployment.deploy import federation, write_files
from evenfed.flower.sites import read_sites
from machines import PATH, Machine

NAMES = ("north", "south")
SPKI = PublicFormat.SubjectPublicKeyInfo
UNITS = {
    "server/flower-superlink.service": "flower",
    "sites/north/flower-supernode.service": "flower-node",
    "sites/north/flower-superexec.service": "flower-app",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("files") / "deploy"
    write_files(out, federation("fed.example.org:443", ",".join(NAMES), str(Path(sys.executable).parent), signed=True))
    return out


def unit(path: Path) -> dict[str, list[str]]:
    """The values of each name in a unit's [Service]."""
    read = configparser.RawConfigParser(dict_type=Several, strict=False)
    read.optionxform = str
    read.read_string(path.read_text().replace("\\\n", ""))
    return {name: value.splitlines() for name, value in read["Service"].items()}


class Several(dict):
    """Names that come again add a line, as in systemd."""

    def __setitem__(self, name, value):
        if isinstance(value, list) and name in self:
            self[name].extend(value)
        else:
            super().__setitem__(name, value)


def test_private_files_are_their_owners_alone(made):
    private = set()
    for path in made.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_file() and mode != 0o644:
            assert mode == 0o600
            private.add(str(path.relative_to(made)))
        secret = b"PRIVATE KEY" in path.read_bytes() if path.is_file() else False
        assert not secret or mode == 0o600, path
    assert private == {
        "ca.key",
        "release.key",
        "server/proxy.key",
        "server/superlink.key",
        *(f"sites/{name}/{file}" for name in NAMES for file in ("key", "tls.key", "secret")),
    }
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert {path.name for path in (made / "server").rglob("*key*")} == {"proxy.key", "superlink.key"}  # no site's


def test_certificates_name_what_is_dialled_and_come_from_the_authority(made):
    authority = x509.load_pem_x509_certificate((made / "ca.crt").read_bytes())
    for name, wanted in (("proxy", "<DNSName(value='fed.example.org')>"), ("superlink", "127.0.0.1")):
        certificate = x509.load_pem_x509_certificate((made / "server" / f"{name}.crt").read_bytes())
        certificate.verify_directly_issued_by(authority)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        assert wanted in str(names.value)
        assert certificate.not_valid_after_utc - certificate.not_valid_before_utc < datetime.timedelta(days=399)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        assert not constraints.value.ca
    own = x509.load_pem_x509_certificate((made / "sites" / "north" / "tls.crt").read_bytes())
    assert own.issuer == own.subject  # the authority vouches for no site's loopback address


def test_every_service_has_a_user_of_its_own_restarts_and_gains_no_privileges(made):
    for place, user in UNITS.items():
        service = unit(made / place)
        assert service["User"] == [user] and service["Restart"] == ["always"]
        assert service["NoNewPrivileges"] == ["yes"] and service["ProtectSystem"] == ["strict"]
        assert service["CapabilityBoundingSet"] == []


def test_what_runs_apps_gets_no_key_and_reaches_no_other_machine(made):
    superexec = unit(made / "sites/north/flower-superexec.service")
    assert superexec["LoadCredential"] == ["secret:/etc/flower-site/secret"]
    assert superexec["IPAddressDeny"] == ["any"] and superexec["IPAddressAllow"] == ["localhost"]
    supernode = unit(made / "sites/north/flower-supernode.service")
    assert (
        "key:/etc/flower-site/key" in supernode["LoadCredential"] and "--isolation process" in supernode["ExecStart"][0]
    )
    assert "--host 127.0.0.1" in unit(made / "server/flower-superlink.service")["ExecStart"][0]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_units(made):
    paths = [str(made / place) for place in UNITS]
    told = subprocess.run(["systemd-analyze", "verify", "--man=no", *paths], capture_output=True, text=True, check=True)
    assert told.stderr == ""
    for path in paths:
        words = ["systemd-analyze", "security", "--offline=true", "--threshold=20", path]  # of 100, the least safe
        subprocess.run(words, capture_output=True, check=True)


@pytest.mark.skipif(shutil.which("nginx", path=PATH) is None, reason="nginx is not installed")
@pytest.mark.parametrize("server", ["fed.example.org:443", "192.0.2.7", "[2001:db8::7]"])
def test_nginx_understands_the_proxy(tmp_path, server):
    write_files(tmp_path / "deploy", federation(server, "1"))
    machine = Machine(tmp_path / "server", Path("/bin"), {})
    machine.install(tmp_path / "deploy" / "server")
    for name in ("proxy.key", "superlink.key"):
        assert stat.S_IMODE((machine.place / "etc" / "flower" / name).stat().st_mode) == 0o600
    told = subprocess.run([*machine.nginx(), "-t"], env={"PATH": PATH}, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


def test_nothing_is_overwritten_and_force_keeps_the_keys_and_adds_sites(evenfed, tmp_path):
    asked = ("flower", "deploy-files", "--server", "fed.example.org", "--sites")
    assert evenfed(*asked, "north").returncode == 0
    out = tmp_path / "deploy"
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    refused = evenfed(*asked, "north,south")
    assert refused.returncode == 2 and "--force" in refused.stderr
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    moved = evenfed("flower", "deploy-files", "--server", "other.org", "--sites", "north,south", "--force")
    assert moved.returncode == 2 and "are for fed.example.org:9092" in moved.stderr
    assert evenfed(*asked, "north,south", "--force").returncode == 0
    readme = (out / "README.md").read_text()
    assert ". server/quiet.env" in readme and "evenfed flower check my-app --sites 2" in readme
    for kept in ("ca.key", "ca.crt", "sites/north/key", "sites/north/key.pub", "sites/north/tls.key"):
        assert (out / kept).read_bytes() == before[out / kept]
    assert (out / "server/proxy.crt").read_bytes() != before[out / "server/proxy.crt"]
    assert "num-partitions=2" in (out / "sites/north/site.env").read_text() and (out / "sites/south/key").exists()
    dropped = evenfed(*asked, "north", "--force")
    assert dropped.returncode == 2 and "--sites leaves out south" in dropped.stderr
    (out / "ca.key").rename(out / "elsewhere")
    refused = evenfed(*asked, "north,south", "--force")
    assert refused.returncode == 2 and "ca.key is missing" in refused.stderr


def test_a_site_whose_folder_was_sent_away_keeps_its_key(tmp_path):
    out = tmp_path / "deploy"
    sites = federation("fed.example.org", "north,south")
    write_files(out, sites)
    listed = (out / "server/sites.toml").read_bytes()
    shutil.rmtree(out / "sites" / "north")
    write_files(out, sites, force=True)
    assert (out / "server/sites.toml").read_bytes() == listed
    assert not (out / "sites" / "north" / "key").exists()


def test_a_site_may_send_its_public_key_alone(tmp_path):
    theirs = tmp_path / "deploy" / "sites" / "north" / "key.pub"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("ecdsa-sha2-nistp384 AAAA'\n")
    with pytest.raises(InputError, match="is no key that Flower takes"):
        write_files(tmp_path / "deploy", federation("fed.example.org", "north,south"))
    assert [path for path in (tmp_path / "deploy").rglob("*") if path.is_file()] == [theirs]
    theirs.write_bytes(certificates.ssh_public(certificates.new_key(), "a comment"))
    write_files(tmp_path / "deploy", federation("fed.example.org", "north,south"))
    assert not theirs.with_name("key").exists() and (tmp_path / "deploy/sites/south/key").exists()
    registered = (tmp_path / "deploy/server/sites/north.pub").read_text()
    assert registered.split() == [*theirs.read_text().split()[:2], "north"]
    listed = read_sites(tmp_path / "deploy/server/sites.toml").sites
    assert [(site.partition, site.name) for site in listed] == [(0, "north"), (1, "south")]
    assert listed[0].key == load_ssh_public_key(theirs.read_bytes()).public_bytes(Encoding.PEM, SPKI)


def test_sites_run_signed_apps_alone_if_that_is_asked_for(made, tmp_path):
    assert "--trusted-entities" in unit(made / "sites/north/flower-supernode.service")["ExecStart"][0]
    write_files(tmp_path / "deploy", federation("fed.example.org", "1"))
    plain = tmp_path / "deploy"
    assert "--trusted-entities" not in (plain / "sites/site-0/flower-supernode.service").read_text()
    assert not (plain / "release.key").exists() and "--signed" in (plain / "README.md").read_text()
    with pytest.raises(InputError, match="made with --signed"):
        write_files(made, federation("fed.example.org:443", ",".join(NAMES)), force=True)
    for path in (*made.rglob("*"), *plain.rglob("*")):
        if path.is_file():
            assert not re.search(r"\b(TRUST|TRUSTED|SIGNING|BIN|HOST|SERVER|SITE|PORT)\b", path.read_text()), path


def test_the_key_is_one_that_flower_reads(made):
    key = load_ssh_private_key((made / "sites" / "north" / "key").read_bytes(), None)
    assert key.curve.name == "secp384r1"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--server", "https://fed.example.org"), "is no host"),
        (("--server", "fed example"), "is no host"),
        (("--server", ""), "is no host"),
        (("--server", "fed.example.org;"), "is no host"),
        (("--server", "300.1.1.1"), "is no host"),
        (("--server", "0.0.0.0"), "is no host"),
        (("--server", "fe80::1%eth0"), "is no host"),
        (("--server", "fed.example.org:8000"), "not 8000"),
        (("--server", "fed.example.org:99999"), "from 1 to 65535"),
        (("--server", "a.org", "--sites", "north,../south"), "cannot name a site"),
        (("--server", "a.org", "--sites", "north,"), "cannot name a site"),
        (("--server", "a.org", "--sites", "north,north"), "twice"),
        (("--server", "a.org", "--sites", "0"), "from 1 to 10000"),
        (("--server", "a.org", "--bin", "bin"), "no absolute folder"),
        (("--server", "a.org", "--out", "full"), "not empty"),
        (("--server", "a.org", "--out", "full/file"), "not a folder"),
    ],
)
def test_bad_input_is_told_and_nothing_is_written(evenfed, tmp_path, words, told):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    done = evenfed("flower", "deploy-files", *words)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "deploy").exists()

"""Signed apps: Flower's own check takes the signature, and its own database passes it on; nothing else does."""

import json
import sqlite3
from contextlib import closing

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab
from flwr.supernode.start_client_internal import _verify_fab

from evenfed import InputError
from evenfed.flower.deployment import certificates
from evenfed.flower.deployment.new import write_app
from evenfed.flower.deployment.signing import admit, sign_app

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),  # Flower's, as it bundles an app
]
STORE = """INSERT INTO fab VALUES (?, ?, '{}')
ON CONFLICT (fab_hash) DO UPDATE SET content = excluded.content, verifications = excluded.verifications"""


@pytest.fixture
def release(tmp_path):
    key = certificates.new_release_key()
    path = tmp_path / "release.key"
    path.write_bytes(certificates.ssh_private(key))
    return path, {certificates.key_name(key): certificates.ssh_public(key, "release").decode()}


@pytest.fixture
def app(tmp_path):
    write_app(tmp_path / "clinics")
    return tmp_path / "clinics"


@pytest.fixture
def database(tmp_path):
    """The table as Flower keeps it; the deployment's test has Flower's own."""
    path = tmp_path / "superlink.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE fab (fab_hash PRIMARY KEY, content, verifications)")
        connection.commit()
    return path


def stored(database, name):
    """As `flwr run` stores an app each time: without signatures."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(STORE, (name, b""))
        connection.commit()
        return json.loads(connection.execute("SELECT verifications FROM fab WHERE fab_hash = ?", (name,)).fetchone()[0])


def test_a_signature_holds_for_the_app_as_it_was_and_for_this_key_alone(app, release, tmp_path):
    path, trusted = release
    signed = json.loads(sign_app(app, path, tmp_path / "signature.json").read_text())
    bundle = build_fab_from_disk(app)
    fab = Fab(signed["fab_hash"], bundle, signed["verifications"])
    assert _verify_fab(fab, trusted)
    assert not _verify_fab(Fab("", bundle + b" ", signed["verifications"]), trusted)
    other = certificates.new_release_key()
    stranger = {name: certificates.ssh_public(other, "release").decode() for name in trusted}
    assert not _verify_fab(fab, stranger)


def test_the_superlink_passes_on_what_was_admitted_each_time_it_stores_the_app(app, release, database, tmp_path):
    signature = sign_app(app, release[0], tmp_path / "signature.json")
    signed = json.loads(signature.read_text())
    assert stored(database, signed["fab_hash"]) == {}
    assert admit(signature, database) == admit(signature, database) == "clinics"
    for _ in range(2):
        assert stored(database, signed["fab_hash"]) == signed["verifications"]
    assert stored(database, "another") == {}


def test_bad_input_is_told(app, release, database, tmp_path):
    ecdsa = tmp_path / "ecdsa"
    ecdsa.write_bytes(certificates.ssh_private(certificates.new_key()))
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("{}")
    signature = sign_app(app, release[0], tmp_path / "signature.json")
    for call, told in (
        (lambda: sign_app(app, ecdsa), "no Ed25519 key"),
        (lambda: sign_app(app, nonsense), "not the key that signs"),
        (lambda: sign_app(app, tmp_path / "none"), "not the key that signs"),
        (lambda: sign_app(tmp_path, release[0]), "pyproject.toml is missing"),
        (lambda: sign_app(app, release[0], tmp_path / "no" / "where"), "cannot be written"),
        (lambda: admit(nonsense, database), "is no signature"),
        (lambda: admit(ecdsa, database), "cannot be read"),
        (lambda: admit(signature, tmp_path / "none"), "is missing"),
        (lambda: admit(signature, ecdsa), "cannot be changed"),
    ):
        with pytest.raises(InputError, match=told):
            call()

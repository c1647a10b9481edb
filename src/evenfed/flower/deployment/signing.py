"""`evenfed flower sign` and `admit`: apps that sites can tell from others, and a SuperLink that passes signatures on.

SuperNodes that are started with --trusted-entities run signed apps alone. Flower 1.41 takes signatures from its own
hub only: the SuperLink stores an app that `flwr run` brings without any. `admit` puts a signature into a second table,
and a trigger that fills it in whenever the app is stored. It cannot forge one: each SuperNode verifies for itself.
"""

import base64
import hashlib
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign

from ...core.errors import InputError, first_line
from ...core.files import plain_file, replace_text
from .certificates import key_name
from .project import read_project

SUFFIX = ".signature.json"


def sign_app(folder: Path, key_path: Path, out: Path | None = None) -> Path:
    """Sign the app as it is now, and write its signature to `out`, else to NAME.signature.json."""
    project = read_project(folder)
    key = _read_key(key_path)
    try:
        bundle = build_fab_from_disk(project.folder)
    except Exception as error:
        raise InputError(f"{folder} cannot be bundled: {first_line(error)}") from None
    digest = hashlib.sha256(bundle)
    signed_at = int(time.time())
    signature = key.sign(create_message_to_sign(digest.digest(), signed_at))
    encoded = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    verification = json.dumps({"signed_at": signed_at, "signature": encoded})
    table = {
        "app": project.folder.name,
        "fab_hash": digest.hexdigest(),
        "verifications": {key_name(key): verification, "valid_license": "Valid"},
    }
    path = out or Path(project.folder.name + SUFFIX)
    try:
        replace_text(path, json.dumps(table, indent=1) + "\n")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from None
    return path


def _read_key(path: Path) -> ed25519.Ed25519PrivateKey:
    try:
        key = load_ssh_private_key(plain_file(path).read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} is not the key that signs apps: {first_line(error)}") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise InputError(f"{path} is no Ed25519 key; deploy-files --signed writes one (release.key)")
    return key


FIELDS = {"app", "fab_hash", "verifications"}  # of a signature's file
TRIGGERS = """
CREATE TABLE IF NOT EXISTS evenfed_signature (fab_hash TEXT PRIMARY KEY, verifications TEXT NOT NULL);
CREATE TRIGGER IF NOT EXISTS evenfed_signed_insert AFTER INSERT ON fab
WHEN EXISTS (SELECT 1 FROM evenfed_signature WHERE fab_hash = NEW.fab_hash)
BEGIN
    UPDATE fab SET verifications = (SELECT verifications FROM evenfed_signature WHERE fab_hash = NEW.fab_hash)
    WHERE fab_hash = NEW.fab_hash;
END;
CREATE TRIGGER IF NOT EXISTS evenfed_signed_update AFTER UPDATE ON fab
WHEN EXISTS (SELECT 1 FROM evenfed_signature WHERE fab_hash = NEW.fab_hash AND verifications != NEW.verifications)
BEGIN
    UPDATE fab SET verifications = (SELECT verifications FROM evenfed_signature WHERE fab_hash = NEW.fab_hash)
    WHERE fab_hash = NEW.fab_hash;
END;
"""


def admit(signature_path: Path, database: Path) -> str:
    """Let the SuperLink of this database pass the signature on; returns the app's name."""
    table = _read_signature(signature_path)
    if not database.is_file():
        raise InputError(f"{database} is missing; give the file that the SuperLink was started with (--database)")
    try:
        with closing(sqlite3.connect(database, timeout=30)) as connection:
            columns = {row[1] for row in connection.execute("PRAGMA table_info(fab)")}
            if not {"fab_hash", "verifications"} <= columns:
                raise InputError(f"{database} has no table of apps as Flower 1.41 keeps it; start the SuperLink once")
            connection.executescript(TRIGGERS)
            row = (table["fab_hash"], json.dumps(table["verifications"]))
            connection.execute("INSERT OR REPLACE INTO evenfed_signature VALUES (?, ?)", row)
            connection.execute("UPDATE fab SET verifications = ? WHERE fab_hash = ?", (row[1], row[0]))
            connection.commit()
    except sqlite3.Error as error:
        raise InputError(f"{database} cannot be changed: {error}; are you its owner?") from None
    return str(table["app"])


def _read_signature(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(plain_file(path).read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {first_line(error)}") from None
    if not isinstance(table, dict) or set(table) != FIELDS:
        raise InputError(f"{path} is no signature; `evenfed flower sign` writes one")
    return table

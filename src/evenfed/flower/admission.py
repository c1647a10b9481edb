"""`evenfed flower admit`: lets a SuperLink pass the signatures of apps on to sites.

SuperNodes that are started with --trusted-entities run signed apps alone. Flower 1.41 takes signatures from its own
hub only: the SuperLink stores an app that `flwr run` brings without any. `admit` puts a signature beside that table,
and a trigger that fills it in whenever the app is stored. It cannot forge one: each SuperNode verifies for itself.
"""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from ..core.errors import InputError, first_line
from ..core.files import plain_file

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

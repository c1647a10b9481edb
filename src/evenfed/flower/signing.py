"""`evenfed flower sign`: apps that sites can tell from others; `admission` brings signatures to them."""

import base64
import hashlib
import json
import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign

from ..core.errors import InputError, first_line
from ..core.files import plain_file, replace_text
from .keys import key_name
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

"""Sealed credentials: what is stored in the database can be read only with a key that is not.

The engine holds a private key, derived from RUNNEL_ENCRYPTION_KEY or from a key file in the home directory. Its
public half is in the database, so that every client can seal a secret for the engine before it sends it. A box is
X25519 + HKDF + AES-256-GCM, bound to its place, and names the key that opens it.
"""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from runnel.catalog.kept import kept_secret
from runnel.errors import UserError

KEY_VARIABLE = "RUNNEL_ENCRYPTION_KEY"
KEY_FILE = "secret.key"
PREFIX = "sealed:1:"
SHORTEST_KEY = 20
_KEY_BYTES = 32
# Each box has a key of its own, so a nonce can never meet the same key twice.
_NONCE = bytes(12)

_ring: dict[bytes, X25519PrivateKey] = {}


def hold_key(home: Path | None) -> str | None:
    """Take the key of this process, making HOME/secret.key when there is none; the public key that seals for it."""
    given = os.environ.get(KEY_VARIABLE)
    if given is not None:
        if len(given) < SHORTEST_KEY:
            raise UserError(
                f"{KEY_VARIABLE} has {len(given)} characters; at least {SHORTEST_KEY} are needed",
                hint="Make one with: openssl rand -base64 32",
            )
        return _hold(given)
    return None if home is None else _hold(_key_file(home / KEY_FILE))


def is_sealed(text: str) -> bool:
    return text.startswith(PREFIX)


def seal(text: str, public_key: str, place: str) -> str:
    """A box that only the holder of the private key opens, and only for the same place."""
    recipient = X25519PublicKey.from_public_bytes(base64.b64decode(public_key))
    once = X25519PrivateKey.generate()
    head = _raw(recipient) + _raw(once.public_key())
    box = AESGCM(_shared(once, recipient, head)).encrypt(_NONCE, text.encode(), place.encode())
    return PREFIX + base64.b64encode(head + box).decode()


def unseal(box: str, place: str) -> str:
    """What was sealed; says which key is missing when this process does not hold it."""
    try:
        content = base64.b64decode(box.removeprefix(PREFIX), validate=True)
    except ValueError:
        content = b""
    head, body = content[: 2 * _KEY_BYTES], content[2 * _KEY_BYTES :]
    private = _ring.get(head[:_KEY_BYTES])
    if private is None:
        raise UserError(
            f"the credentials stored for {place} were sealed with another key",
            hint=f"Start the engine with the {KEY_VARIABLE} or the home directory that it had then, or store the "
            "credentials again with: runnel lake set",
        )
    sender = X25519PublicKey.from_public_bytes(head[_KEY_BYTES:])
    try:
        return AESGCM(_shared(private, sender, head)).decrypt(_NONCE, body, place.encode()).decode()
    except InvalidTag:
        raise UserError(
            f"the credentials stored for {place} were changed or moved there from another place",
            hint="Store them again with: runnel lake set",
        ) from None


def _hold(text: str) -> str:
    seed = HKDF(hashes.SHA256(), _KEY_BYTES, salt=None, info=b"runnel sealing key").derive(text.strip().encode())
    private = X25519PrivateKey.from_private_bytes(seed)
    public = _raw(private.public_key())
    _ring[public] = private
    return base64.b64encode(public).decode()


def _key_file(path: Path) -> str:
    """The key in a file that only its owner can read; made at the first time."""
    way_out = f"Run: chmod 600 {path} (and store the credentials anew)"
    return kept_secret(path, lambda: secrets.token_urlsafe(_KEY_BYTES), way_out=way_out)


def _shared(private: X25519PrivateKey, public: X25519PublicKey, head: bytes) -> bytes:
    return HKDF(hashes.SHA256(), _KEY_BYTES, salt=head, info=b"runnel sealed box").derive(private.exchange(public))


def _raw(key: X25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)

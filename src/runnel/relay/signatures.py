"""How senders of webhooks sign: with a secret that both sides know, each service in a form of its own.

A signature with a time in it is good for a while only; older ones may have been overheard.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping

from runnel.relay.sinks.webhook import SIGNATURE, TIMESTAMP, signature

Headers = Mapping[str, str]
"""Their names are in small letters."""
Scheme = Callable[[str, Headers, bytes, float], bool]
"""Whether a body was signed with a secret, not longer ago than so many seconds."""
PREFIX = "whsec_"


def of_the_body(header: str) -> Scheme:
    """The HMAC-SHA256 of the body in a header, with or without `sha256=` before it."""

    def is_signed(secret: str, headers: Headers, body: bytes, tolerance: float) -> bool:  # noqa: ARG001
        return same(headers.get(header.lower(), "").removeprefix("sha256="), _hex(secret.encode(), body))

    return is_signed


def by_runnel(secret: str, headers: Headers, body: bytes, tolerance: float) -> bool:
    """As the sink `webhook` signs."""
    at = headers.get(TIMESTAMP.lower(), "")
    return _is_near(at, tolerance) and same(
        headers.get(SIGNATURE.lower(), ""), signature(secret, body, int(at))[SIGNATURE]
    )


def by_stripe(secret: str, headers: Headers, body: bytes, tolerance: float) -> bool:
    """`t=<time>,v1=<hex>`, over time and body; after a change of secrets there are several."""
    parts = [part.strip().partition("=") for part in headers.get("stripe-signature", "").split(",")]
    at = next((value for key, _, value in parts if key == "t"), "")
    wanted = _hex(secret.encode(), f"{at}.".encode() + body)
    return _is_near(at, tolerance) and any(same(value, wanted) for key, _, value in parts if key == "v1")


def by_svix(secret: str, headers: Headers, body: bytes, tolerance: float) -> bool:
    """`v1,<base64>`, over id, time and body, as Svix and the Standard Webhooks have it."""
    name = "svix" if "svix-signature" in headers else "webhook"
    id_, at = headers.get(f"{name}-id", ""), headers.get(f"{name}-timestamp", "")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        return False
    signed = hmac.new(key, f"{id_}.{at}.".encode() + body, hashlib.sha256).digest()
    wanted = f"v1,{base64.b64encode(signed).decode()}"
    given = headers.get(f"{name}-signature", "").split(" ")
    return _is_near(at, tolerance) and any(same(each, wanted) for each in given)


SCHEMES: Mapping[str, Scheme] = {
    "runnel": by_runnel,
    "hmac-sha256": of_the_body("X-Signature"),
    "github": of_the_body("X-Hub-Signature-256"),
    "stripe": by_stripe,
    "svix": by_svix,
}


def same(given: str, wanted: str) -> bool:
    """Compared in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode(), wanted.encode())


def _hex(key: bytes, body: bytes) -> str:
    return hmac.new(key, body, hashlib.sha256).hexdigest()


def _is_near(at: str, tolerance: float) -> bool:
    return at.isascii() and at.isdecimal() and abs(time.time() - int(at)) <= tolerance

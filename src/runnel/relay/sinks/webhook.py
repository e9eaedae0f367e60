"""Messages as HTTP requests: signed, each with a key that stays the same when it is sent again.

Addresses of private networks are refused unless the pipeline allows them: a webhook must not be a way into the network
of the relay. The name is looked up once per connection and the connection goes to the address that was looked at, so
that a name cannot mean something else a moment later. Redirects are not followed.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from runnel.errors import UserError
from runnel.relay.config import Options
from runnel.relay.message import Message, Refused, Unavailable, header_text, one_by_one

TIMESTAMP, SIGNATURE = "X-PgTide-Timestamp", "X-PgTide-Signature"
RETRY_CODES = (408, 425, 429, 500, 502, 503, 504)
OPTIONS = (
    "url", "timeout_ms", "timeout_secs", "headers", "method", "retry_codes", "signing_secret", "allow_http",
    "ssrf_protection",
)  # fmt: skip
_METHODS = ("POST", "PUT", "PATCH")
_MOST_OF_AN_ANSWER = 1 << 16
"""Bytes. Nobody reads what a receiver says; a longer answer costs it the connection."""
_WITH_ANOTHER_INSIDE = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
"""Translated on the way to the IPv4 address in their last four bytes."""


class WebhookSink:
    """Sends each message as a request of its own, over one connection."""

    def __init__(self, options: Options) -> None:
        options.refuse_unknown(OPTIONS)
        self._url = urlsplit(options.text("url"))
        self._method = options.text("method", "POST").upper()
        self._headers = options.texts("headers")
        self._retry = frozenset(options.numbers("retry_codes", RETRY_CODES))
        self._secret = options.maybe("signing_secret")
        self._guarded = options.flag("ssrf_protection", default=True)
        self._timeout = options.number("timeout_ms", options.number("timeout_secs", 30) * 1000) / 1000
        self._connection: http.client.HTTPConnection | None = None
        if any(mark in f"{name}{value}" for name, value in self._headers.items() for mark in "\r\n"):
            raise UserError(f"pipeline {options.pipeline.name}: a header has more than one line", sqlstate="22023")
        schemes = ("https", "http") if options.flag("allow_http") else ("https",)
        if self._url.scheme not in schemes or not self._url.hostname or self._method not in _METHODS:
            raise UserError(
                f"pipeline {options.pipeline.name}: url must begin with {' or '.join(schemes)}, and method be one of "
                f"{', '.join(_METHODS)}",
                hint="allow_http lets messages travel unencrypted, for tests on one machine.",
                sqlstate="22023",
            )

    def send(self, messages: Sequence[Message]) -> None:
        """One request each, in order."""
        one_by_one(messages, self._send)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, message: Message) -> None:
        body = message.payload.encode()
        headers = {
            "Content-Type": "application/json",
            "X-PgTide-Dedup-Key": header_text(message.dedup_key),
            "Idempotency-Key": header_text(message.dedup_key),
            "X-PgTide-Event-Type": header_text(message.event_type),
            **self._headers,
        }
        if self._secret is not None:
            headers.update(signature(self._secret, body, int(time.time())))
        path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        try:
            connection = self._connected()
            connection.request(self._method, path, body, headers)
            answer = connection.getresponse()
            answer.read(_MOST_OF_AN_ANSWER)
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            self.close()
            raise Unavailable(f"{self._url.hostname} does not answer: {type(error).__name__}") from error
        if answer.will_close or not answer.isclosed():
            self.close()
        if answer.status in self._retry:
            raise Unavailable(f"{self._url.hostname} answered {answer.status}")
        if not 200 <= answer.status < 300:
            raise Refused(f"{self._url.hostname} answered {answer.status}")

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            host = self._url.hostname or ""
            port = self._url.port or (443 if self._url.scheme == "https" else 80)
            raw = self._reach(host, port)
            # Headers and body are two packets: the second must not wait for an answer to the first.
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = http.client.HTTPConnection(host, port, timeout=self._timeout)
            if self._url.scheme == "https":
                connection = http.client.HTTPSConnection(host, port, timeout=self._timeout)
                raw = ssl.create_default_context().wrap_socket(raw, server_hostname=host)
            connection.sock = raw
            self._connection = connection
        return self._connection

    def _reach(self, host: str, port: int) -> socket.socket:
        """Connected to the first address that answers. All of them are looked at before any is asked."""
        found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        if self._guarded and any(not is_public(address) for address in found):
            raise Refused(
                f"{host} is an address of a private network",
                hint="ssrf_protection => false allows it for this pipeline.",
            )
        failed: OSError | None = None
        for address in dict.fromkeys(found):
            try:
                return socket.create_connection((address, port), self._timeout)
            except OSError as error:
                failed = error
        raise failed or OSError("no address")


def is_public(address: str) -> bool:
    """Whether an address is one of the open internet.

    >>> is_public("93.184.215.14"), is_public("10.0.0.1"), is_public("::ffff:127.0.0.1"), is_public("169.254.169.254")
    (True, False, False, False)
    >>> is_public("64:ff9b::7f00:1"), is_public("2002:a00:1::"), is_public("64:ff9b::5db8:d70e")
    (False, False, True)
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    meant = _inside(parsed) if isinstance(parsed, ipaddress.IPv6Address) else parsed
    return meant.is_global and not meant.is_multicast


def _inside(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address that an IPv6 address stands for, if it does; else itself."""
    if any(address in network for network in _WITH_ANOTHER_INSIDE):
        return ipaddress.IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address


def signature(secret: str, body: bytes, at: int) -> dict[str, str]:
    """Headers that prove who sent a body, and when: HMAC-SHA256 over `<time>.<body>`.

    >>> signature("s", b"{}", 7)["X-PgTide-Timestamp"]
    '7'
    """
    signed = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return {TIMESTAMP: str(at), SIGNATURE: f"sha256={signed}"}

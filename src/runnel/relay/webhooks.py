"""Webhooks of others, on their way to an inbox: they are pushed, where other sources are asked.

Whoever sends must prove it with what the pipeline was told. `signing_secret` is the key of a signature: as the sink
`webhook` of another Runnel signs, as a service does (`signature_scheme`), or over the body alone, in the header that
`signature_header` names. `token` is a bearer token. A message that comes again is known by the key that its sender gave
it; one without a key is taken for a new one.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from runnel.catalog.lost import is_lost
from runnel.catalog.sessions import connect
from runnel.errors import RunnelError, UserError
from runnel.relay import catalog
from runnel.relay.arrival import Reception
from runnel.relay.config import Options, Pipeline
from runnel.relay.port import Arrival
from runnel.relay.signatures import SCHEMES, Scheme, of_the_body, same
from runnel.relay.sinks.webhook import SIGNATURE, TIMESTAMP
from runnel.relay.sources import as_json

KIND = "webhook"
OPTIONS = ("signing_secret", "signature_scheme", "signature_header", "token", "id_header", "tolerance_secs")
_TOLERANCE = 300.0
"""Seconds between the clocks of sender and receiver; older signatures may have been overheard."""
_KEYS = ("x-pgtide-dedup-key", "idempotency-key", "webhook-id", "svix-id", "x-github-delivery")
"""Headers in which senders name a message."""
_PROOFS = frozenset({"authorization", "cookie", SIGNATURE.lower(), TIMESTAMP.lower()})


@dataclass(frozen=True, slots=True)
class Answer:
    """What the sender is told."""

    status: int
    text: str


@dataclass
class Webhooks:
    """Takes messages in, one after the other, on a session of its own: triggers of an inbox's owner run in it."""

    dsn: str = field(repr=False)
    _conn: psycopg.Connection[Any] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def receive(self, name: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """A request for the pipeline of that name; the names of headers are in small letters."""
        with self._lock:
            try:
                return self._receive(name, headers, body)
            except (RunnelError, psycopg.Error):
                if self._conn is not None and is_lost(self._conn):
                    self._conn.close()
                    self._conn = None
                # What went wrong is for the pipeline's owner to read, not for whoever sends.
                return Answer(503, "The message was not taken in; send it again.")

    def close(self) -> None:
        """End the session."""
        with self._lock:
            if self._conn is not None:
                self._conn.close()
                self._conn = None

    def _receive(self, name: str, headers: Mapping[str, str], body: bytes) -> Answer:
        conn = self._connected()
        found = (p for p in catalog.pipelines(conn)[0] if p.inbox and p.kind == KIND and p.name == name)
        pipeline = next(found, None)
        if pipeline is None:
            return Answer(404, f"There is no webhook {name} here.")
        try:
            options = Options(pipeline)
            options.refuse_unknown(OPTIONS)
            if not _is_proven(options, headers, body):
                return Answer(401, "The message is not signed as it should be.")
            Reception(conn, pipeline, _Pushed([_arrival(options, headers, body)])).step(0)
        except (RunnelError, psycopg.Error) as error:
            if not is_lost(conn):
                _record(conn, pipeline, error)
            raise
        return Answer(202, "Taken in.")

    def _connected(self) -> psycopg.Connection[Any]:
        if self._conn is None:
            self._conn = connect(self.dsn, "runnel webhooks", timeout=10)
            # Code of others may run in this session: afterwards all that is prepared is thrown away.
            self._conn.prepare_threshold = None
        return self._conn


@dataclass
class _Pushed:
    """A source that has what was pushed."""

    arrived: Sequence[Arrival]

    def receive(self, limit: int, seconds: float) -> Sequence[Arrival]:  # noqa: ARG002
        """All of it."""
        return self.arrived

    def acknowledge(self) -> None:
        """The answer to the request does that."""

    def close(self) -> None:
        """Nothing is held."""


def _record(conn: psycopg.Connection[Any], pipeline: Pipeline, error: Exception) -> None:
    catalog.not_received(conn, pipeline.name, str(error).partition("\n")[0])


def _is_proven(options: Options, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a request comes from somebody who knows the secret; a pipeline without one takes nothing."""
    token, secret = options.maybe("token"), options.maybe("signing_secret")
    if token is not None and same(headers.get("authorization", ""), f"Bearer {token}"):
        return True
    return secret is not None and _scheme(options)(secret, headers, body, options.number("tolerance_secs", _TOLERANCE))


def _scheme(options: Options) -> Scheme:
    named, header = options.text("signature_scheme", "runnel"), options.maybe("signature_header")
    if named not in SCHEMES:
        raise UserError(
            f"pipeline {options.pipeline.name}: there is no signature_scheme {named}",
            hint=f"One of {', '.join(SCHEMES)}.",
            sqlstate="22023",
        )
    return of_the_body(header) if header is not None else SCHEMES[named]


def _arrival(options: Options, headers: Mapping[str, str], body: bytes) -> Arrival:
    names = [options.text("id_header", "").lower(), *_KEYS]
    key = next((headers[name] for name in names if headers.get(name)), None) or str(uuid.uuid4())
    proofs = {*_PROOFS, "x-signature", "x-hub-signature-256", options.text("signature_header", "").lower()}
    told = {n: v for n, v in headers.items() if (n.startswith("x-") or n == "content-type") and n not in proofs}
    return Arrival(key, as_json(body.decode(errors="replace")), told)

"""What a pipeline was told: typed access to its options, with secrets from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runnel.errors import UserError

_FROM_ENVIRONMENT = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")

COMMON = ("rate_limit", "max_retries", "retry_backoff_ms", "retry_backoff_max_ms", "dry_run")
"""Options that every sink has."""
ALSO_CALLED: Mapping[str, tuple[str, ...]] = {
    "durable": ("durable_name", "consumer"),
    "group": ("group_name", "group_id"),
    "id_header": ("idempotency_header",),
    "inbox": ("inbox_name",),
    "postgres_url": ("target_url",),
    "signing_secret": ("signature_secret",),
    "stream": ("stream_key",),
    "subject": ("subject_template",),
    "topic": ("topic_template",),
}
"""Names that pg-tide has for the same options."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A way from an outbox to a sink, or (`inbox`) from a source to an inbox."""

    name: str
    place: str
    """The outbox that it reads, or the inbox that it fills."""
    kind: str
    config: Mapping[str, Any] = field(repr=False)
    batch_size: int = 100
    owner: str = ""
    inbox: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a pipeline, asked for by name; each is checked when it is asked for."""

    pipeline: Pipeline

    def refuse_unknown(self, known: Sequence[str]) -> None:
        """A slip of the pen is not to be taken for a default."""
        also = {other for name in known for other in ALSO_CALLED.get(name, ())}
        unknown = sorted(set(self.pipeline.config) - {*known, *also, *COMMON})
        if unknown:
            raise UserError(
                f"{self._here}: there is no option {', '.join(unknown)}",
                hint=f"Options of {self.pipeline.kind}: {', '.join([*known, *COMMON])}.",
                sqlstate="22023",
            )

    def text(self, name: str, default: str | None = None) -> str:
        """A text; one without a default must be given."""
        value = self._given(name)
        if value is None or value == "":
            if default is None:
                raise UserError(f"{self._here}: option {name} is missing", sqlstate="22023")
            return default
        return self._filled(str(value), name)

    def maybe(self, name: str) -> str | None:
        return self.text(name, "") or None

    def number(self, name: str, default: float) -> float:
        value = self._given(name)
        try:
            return default if value is None else float(value)
        except (TypeError, ValueError):
            raise UserError(f"{self._here}: {name} must be a number", sqlstate="22023") from None

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self._given(name)
        return default if value is None else value in (True, "true", "on", 1)

    def texts(self, name: str) -> dict[str, str]:
        """An object of texts, such as headers."""
        value = self._given(name) or {}
        if not isinstance(value, Mapping):
            raise UserError(f"{self._here}: {name} must be an object", sqlstate="22023")
        return {str(k): self._filled(str(v), name) for k, v in value.items()}

    def numbers(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        value = self._given(name)
        return tuple(default) if value is None else tuple(int(each) for each in value)

    def _filled(self, text: str, name: str) -> str:
        """A text with `${env:NAME}` replaced: secrets need not be in the database."""

        def value(found: re.Match[str]) -> str:
            if found[1] not in os.environ:
                raise UserError(
                    f"{self._here}: option {name} names the variable {found[1]}, which is not set",
                    hint="Set it in the environment of the relay.",
                    sqlstate="22023",
                )
            return os.environ[found[1]]

        return _FROM_ENVIRONMENT.sub(value, text)

    def _given(self, name: str) -> Any:
        names = (name, *ALSO_CALLED.get(name, ()))
        return next((self.pipeline.config[each] for each in names if self.pipeline.config.get(each) is not None), None)

    @property
    def _here(self) -> str:
        return f"pipeline {self.pipeline.name}"

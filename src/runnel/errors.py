"""The errors a caller may see.

One root, four families named after what the reader can do about it: fix the input, look at the sources,
try again, or report a bug. Retry policy reads the class, never the text.
"""

from __future__ import annotations


class RunnelError(Exception):
    """Root of all errors raised on purpose: what happened, and the way out."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        detail: str | None = None,
        sqlstate: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail
        self.sqlstate = sqlstate

    def __str__(self) -> str:
        """The message alone; fronts decide how to show hint and detail."""
        return self.message

    def as_json(self) -> dict[str, str | None]:
        """The form in which an error travels from the engine to the SQL function that waits for it."""
        return {
            "message": self.message,
            "hint": self.hint,
            "detail": self.detail,
            "sqlstate": self.sqlstate,
        }


class UserError(RunnelError):
    """The input is wrong or not supported: nothing was changed, fix it and call again."""


class SchemaDriftError(RunnelError):
    """A source no longer looks as the stream table's query needs it."""


class TransientError(RunnelError):
    """A server, a lock or the network got in the way: the same call may work later."""


class Cancelled(TransientError):
    """Somebody who may do so has stopped the work: nothing of it is left, and nothing is wrong."""

    def __init__(self, why: str) -> None:
        super().__init__(why, sqlstate="57014")


class Outdated(TransientError):
    """Something happened after the snapshot without which it makes no sense: another snapshot will do."""


class EngineBug(RunnelError):
    """An invariant does not hold; please report it."""


class SparkFailure(RunnelError):
    """A Spark job failed; the refresh is tried again like any other that failed."""

"""Errors in the words of the REST protocol."""

from __future__ import annotations

from runnel.errors import RunnelError


class ProtocolError(RunnelError):
    """What a client is told: a status, a type that it knows, a sentence."""

    def __init__(self, code: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind

    def as_body(self) -> dict[str, dict[str, str | int]]:
        return {"error": {"message": self.message, "type": self.kind, "code": self.code}}


def bad_request(message: str) -> ProtocolError:
    return ProtocolError(400, "BadRequestException", message)


def no_namespace(name: str) -> ProtocolError:
    return ProtocolError(404, "NoSuchNamespaceException", f"Namespace does not exist: {name}")


def no_table(namespace: str, name: str) -> ProtocolError:
    return ProtocolError(404, "NoSuchTableException", f"Table does not exist: {namespace}.{name}")


def no_view(namespace: str, name: str) -> ProtocolError:
    return ProtocolError(404, "NoSuchViewException", f"View does not exist: {namespace}.{name}")


def no_warehouse(name: str) -> ProtocolError:
    return ProtocolError(404, "NotFoundException", f"There is no lake {name}: a warehouse is the name of a lake.")


def unsupported(deed: str) -> ProtocolError:
    return ProtocolError(406, "UnsupportedOperationException", f"{deed} is not supported.")


def forbidden(message: str) -> ProtocolError:
    return ProtocolError(403, "ForbiddenException", message)


def already_exists(what: str) -> ProtocolError:
    return ProtocolError(409, "AlreadyExistsException", f"{what} already exists.")


def not_empty(name: str) -> ProtocolError:
    return ProtocolError(409, "NamespaceNotEmptyException", f"Namespace {name} is not empty.")


def unknown(message: str) -> ProtocolError:
    """The one case of a 500: a commit may or may not be there, and clients must not remove what they have written."""
    return ProtocolError(500, "CommitStateUnknownException", message)


def is_unknown(error: BaseException) -> bool:
    return isinstance(error, ProtocolError) and error.code == 500


def unavailable(message: str) -> ProtocolError:
    return ProtocolError(503, "ServiceUnavailableException", message)

"""Answer the calls that SQL functions make: from a request's kind to an operation, and its answer."""

from __future__ import annotations

import logging
from typing import Any

import psycopg

from runnel.catalog import requests as calls
from runnel.catalog.lost import is_lost
from runnel.catalog.rows import Request
from runnel.dsn import without_secrets
from runnel.engine.advice import advised
from runnel.engine.arguments import refuse_empty, require_arguments
from runnel.engine.definitions import Caller
from runnel.engine.explain import explain, validate
from runnel.engine.operations import Operations
from runnel.engine.testing import set_tests
from runnel.errors import RunnelError
from runnel.sources.registry import Services
from runnel.sql.describe import user_error

log = logging.getLogger(__name__)


def answer(operations: Operations, services: Services, request: Request) -> None:
    """Carry a request out and store its answer; only a lost connection propagates."""
    control = operations.conn
    try:
        for service in services:
            if request.kind in service.slow:
                service.take(operations.conn, request.request_id, request.args, request.role)
                return
            if request.kind in service.secret:
                calls.forget_arguments(control, request.request_id)
        result = _dispatch(operations, services, request)
    except RunnelError as error:
        calls.finish_request(control, request.request_id, error=advised(error, control.info.user))
    except psycopg.Error as error:
        if is_lost(operations.conn, control):
            raise
        calls.finish_request(control, request.request_id, error=advised(user_error(error), control.info.user))
    except Exception as error:
        if is_lost(operations.conn, control):
            raise
        log.exception("request %s (%s) failed", request.request_id, request.kind)
        bug = {
            "message": f"{request.kind} failed: {without_secrets(str(error))}",
            "hint": "The engine's log has the details.",
            "sqlstate": "XX000",
        }
        calls.finish_request(control, request.request_id, error=bug)
    else:
        calls.finish_request(control, request.request_id, result=result)


def _dispatch(operations: Operations, services: Services, request: Request) -> Any:
    caller = Caller(request.role, request.settings or {}, request.caller_pid)
    args = request.args
    for service in services:
        if request.kind in service.requests:
            require_arguments(request.kind, args, service.required)
            return service.requests[request.kind](operations.conn, args, caller.role)
    require_arguments(request.kind, args)
    refuse_empty(request.kind, args)
    match request.kind:
        case "create":
            return operations.create(args, caller)
        case "create_if_not_exists":
            return operations.create_if_not_exists(args, caller)
        case "create_or_replace":
            return operations.create_or_replace(args, caller)
        case "alter":
            return operations.alter(args, caller)
        case "drop":
            return operations.drop(args, caller)
        case "refresh":
            return operations.refresh(args, caller)
        case "cancel":
            return operations.cancel(args, caller)
        case "resume":
            return operations.resume(args, caller)
        case "verify":
            return operations.verify(args, caller)
        case "set_tests":
            return set_tests(operations, args, caller)
        case "validate":
            return validate(operations, args["query"], caller)
        case "explain":
            return explain(operations, args["name"], caller)
        case other:
            raise RunnelError(f"unknown request {other!r}", hint="The SQL functions and the engine differ in version.")

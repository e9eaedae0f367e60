"""The Iceberg REST catalog protocol: routes and answers.

What is read is here; what writes is in `write.py`, and its requests are read in `posts.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from runnel.iceberg import posts
from runnel.iceberg.credentials import settings, vended
from runnel.iceberg.errors import ProtocolError, bad_request, no_view, unsupported
from runnel.iceberg.names import Role
from runnel.iceberg.warehouse import Borrow, Warehouse, Warehouses
from runnel.iceberg.write import Writer
from runnel.lake.format.model import Lake
from runnel.lake.store.beside import beside

log = logging.getLogger(__name__)

ICEBERG = "/iceberg"
_TABLE = "/v1/{prefix}/namespaces/{namespace}/tables/{table}"
_TABLES = "/v1/{prefix}/namespaces/{namespace}/tables"
_NAMESPACE = "/v1/{prefix}/namespaces/{namespace}"
_NAMESPACES = "/v1/{prefix}/namespaces"
_VIEWS = "/v1/{prefix}/namespaces/{namespace}/views"
_VIEW = "/v1/{prefix}/namespaces/{namespace}/views/{view}"
_OAUTH = "/v1/oauth/tokens"

_RENAME = "/v1/{prefix}/tables/rename"
_TRANSACTION = "/v1/{prefix}/transactions/commit"

_REFUSED = {
    ("POST", _NAMESPACE + "/register"): "Registering a table",
    ("POST", _VIEWS): "Creating a view",
    ("POST", _VIEW): "Changing a view",
    ("DELETE", _VIEW): "Dropping a view",
}

Tokens = Callable[[str], Any]


class Rest:
    """The protocol over all attached lakes."""

    open_paths = (_OAUTH,)
    """Who asks for a token has none yet."""
    harmless_posts = ("/metrics",)

    def __init__(self, borrow: Borrow, by_token: Tokens) -> None:
        self._warehouses = Warehouses(borrow)
        self._writer = Writer(self._warehouses)
        self._by_token = by_token

    def routes(self) -> list[Route]:
        read: dict[tuple[str, tuple[str, ...]], Callable[[Request], Response]] = {
            ("/v1/config", ("GET",)): self._config,
            (_NAMESPACES, ("GET",)): self._namespaces,
            (_NAMESPACE, ("GET", "HEAD")): self._namespace,
            (_TABLES, ("GET",)): self._tables,
            (_TABLE, ("GET", "HEAD")): self._table,
            (_TABLE + "/credentials", ("GET",)): self._credentials,
            (_TABLE + "/metrics", ("POST",)): lambda _: Response(status_code=204),
            (_VIEWS, ("GET",)): self._views,
            (_VIEW, ("GET", "HEAD")): self._view,
        }
        made = [Route(_OAUTH, _answer(self._oauth, body=True), methods=["POST"])]
        made += [Route(path, _answer(act), methods=list(methods)) for (path, methods), act in read.items()]
        made += [
            Route(path, _answer(act, body=True), methods=[method]) for (path, method), act in self._writes().items()
        ]
        made += [Route(path, _answer(_refuser(deed)), methods=[method]) for (method, path), deed in _REFUSED.items()]
        return made

    def _writes(self) -> dict[tuple[str, str], Callable[[Request], Response]]:
        return {
            (_NAMESPACES, "POST"): self._create_namespace,
            (_NAMESPACE, "DELETE"): self._drop_namespace,
            (_NAMESPACE + "/properties", "POST"): self._set_namespace,
            (_TABLES, "POST"): self._create,
            (_TABLE, "POST"): self._commit,
            (_TABLE, "DELETE"): self._drop,
            (_RENAME, "POST"): self._rename,
            (_TRANSACTION, "POST"): self._transaction,
        }

    # -- who and where ---------------------------------------------------------------------------------------

    def _oauth(self, request: Request) -> Response:
        """Client credentials as Iceberg's clients send them: the secret is the token."""
        form = {key: values[-1] for key, values in parse_qs(request.state.body.decode("utf-8", "replace")).items()}
        kind = form.get("grant_type", "")
        secret = form.get("client_secret") if kind == "client_credentials" else form.get("subject_token")
        if kind not in ("client_credentials", "urn:ietf:params:oauth:grant-type:token-exchange"):
            return _oauth_error(400, "unsupported_grant_type", "Use client_credentials.")
        if not secret or self._by_token(secret) is None:
            return _oauth_error(401, "invalid_client", "The secret is not a token of this server.")
        return JSONResponse(
            {
                "access_token": secret,
                "token_type": "bearer",
                "expires_in": 3600,
                "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            },
            headers={"Cache-Control": "no-store"},
        )

    def _config(self, request: Request) -> Response:
        warehouse = self._warehouses.find(request.query_params.get("warehouse"))
        return JSONResponse(
            {
                # A default, not an override: a client that names the prefix of version 2 gets it.
                "defaults": {"prefix": warehouse.prefix},
                "overrides": {},
                "endpoints": [
                    f"{method} {path}"
                    for path, methods in (
                        (_NAMESPACES, ("GET", "POST")),
                        (_NAMESPACE, ("GET", "HEAD", "DELETE")),
                        (_NAMESPACE + "/properties", ("POST",)),
                        (_TABLES, ("GET", "POST")),
                        (_TABLE, ("GET", "HEAD", "POST", "DELETE")),
                        (_TABLE + "/credentials", ("GET",)),
                        (_TABLE + "/metrics", ("POST",)),
                        (_RENAME, ("POST",)),
                        (_TRANSACTION, ("POST",)),
                    )
                    for method in methods
                ],
            }
        )

    def _place(self, request: Request) -> tuple[Warehouse, Role]:
        prefix, caller = _part(request, "prefix"), request.state.caller
        role = None if caller.is_engine else caller.role
        try:
            return self._warehouses.find(prefix), role
        except ProtocolError:
            # Some clients encode what was encoded already.
            if unquote(prefix) == prefix:
                raise
            return self._warehouses.find(unquote(prefix)), role

    # -- what there is ---------------------------------------------------------------------------------------

    def _namespaces(self, request: Request) -> Response:
        warehouse, role = self._place(request)
        parent = request.query_params.get("parent")
        if parent:
            # Schemas have none below them.
            self._warehouses.require_namespace(warehouse, role, parent)
            return JSONResponse({"namespaces": [], "next-page-token": None})
        found, token = _page(request, [[name] for name in self._warehouses.namespaces(warehouse, role)])
        return JSONResponse({"namespaces": found, "next-page-token": token})

    def _namespace(self, request: Request) -> Response:
        warehouse, role = self._place(request)
        name = _part(request, "namespace")
        self._warehouses.require_namespace(warehouse, role, name)
        if request.method == "HEAD":
            return Response(status_code=204)
        return JSONResponse({"namespace": [name], "properties": self._writer.namespace_properties(warehouse, name)})

    def _tables(self, request: Request) -> Response:
        warehouse, role = self._place(request)
        listed = self._warehouses.tables(warehouse, role, _part(request, "namespace"))
        found, token = _page(request, [{"namespace": [each.namespace], "name": each.name} for each in listed])
        return JSONResponse({"identifiers": found, "next-page-token": token})

    def _table(self, request: Request) -> Response:
        warehouse, role = self._place(request)
        namespace, name = _part(request, "namespace"), _part(request, "table")
        if request.method == "HEAD":
            self._warehouses.find_table(warehouse, role, namespace, name)
            return Response(status_code=204)
        mode = request.query_params.get("snapshots", "all")
        if mode not in ("all", "refs"):
            raise bad_request(f"snapshots={mode} is neither all nor refs.")
        return self._loaded(request, warehouse, role, namespace, name, mode)

    def _loaded(
        self, request: Request, warehouse: Warehouse, role: Role, namespace: str, name: str, mode: str = "all"
    ) -> Response:
        loaded, lake = self._warehouses.load(warehouse, role, namespace, name)
        etag = f'"{loaded.etag}-{mode}"'
        if request.method == "GET" and request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers={"ETag": etag})
        extra: dict[str, Any] = {"config": settings(lake)}
        if "vended-credentials" in request.headers.get("x-iceberg-access-delegation", ""):
            given = vended(lake, is_engine=request.state.caller.is_engine)
            extra["config"] |= given
            extra["storage-credentials"] = _credentials(lake, given)
        body = loaded.body if mode == "all" else loaded.head_only
        text = b"{" + body + b", " + json.dumps(extra)[1:].encode()
        headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
        return Response(text, media_type="application/json", headers=headers)

    # -- what is written -------------------------------------------------------------------------------------

    def _commit(self, request: Request) -> Response:
        warehouse, role = self._place(request)
        namespace, name = _part(request, "namespace"), _part(request, "table")
        self._writer.commit(warehouse, role, [posts.wish(posts.body(request.state.body), namespace, name)])
        return self._loaded(request, warehouse, role, namespace, name)

    def _transaction(self, request: Request) -> Response:
        warehouse, role = self._place(request)
        self._writer.commit(warehouse, role, posts.wishes(posts.body(request.state.body)))
        return Response(status_code=204)

    def _create(self, request: Request) -> Response:
        warehouse, role = self._place(request)
        namespace, body = _part(request, "namespace"), posts.body(request.state.body)
        staged = self._writer.create(warehouse, role, namespace, body)
        if staged is not None:
            return JSONResponse({"metadata": staged, "config": {}})
        return self._loaded(request, warehouse, role, namespace, str(body["name"]))

    def _drop(self, request: Request) -> Response:
        warehouse, role = self._place(request)
        self._writer.drop(warehouse, role, _part(request, "namespace"), _part(request, "table"))
        return Response(status_code=204)

    def _rename(self, request: Request) -> Response:
        warehouse, role = self._place(request)
        body = posts.body(request.state.body)
        self._writer.rename(warehouse, role, posts.identifier(body, "source"), posts.identifier(body, "destination"))
        return Response(status_code=204)

    def _create_namespace(self, request: Request) -> Response:
        warehouse, role = self._place(request)
        body = posts.body(request.state.body)
        name, properties = posts.namespace(body), posts.texts(body, "properties")
        self._writer.create_namespace(warehouse, role, name, properties)
        return JSONResponse({"namespace": [name], "properties": properties})

    def _drop_namespace(self, request: Request) -> Response:
        warehouse, role = self._place(request)
        self._writer.drop_namespace(warehouse, role, _part(request, "namespace"))
        return Response(status_code=204)

    def _set_namespace(self, request: Request) -> Response:
        warehouse, role = self._place(request)
        body = posts.body(request.state.body)
        updates, removals = posts.texts(body, "updates"), [str(key) for key in body.get("removals") or []]
        gone, missing = self._writer.set_namespace(warehouse, role, _part(request, "namespace"), updates, removals)
        return JSONResponse({"updated": list(updates), "removed": gone, "missing": missing})

    def _credentials(self, request: Request) -> Response:
        warehouse, role = self._place(request)
        namespace, name = _part(request, "namespace"), _part(request, "table")
        _, lake = self._warehouses.load(warehouse, role, namespace, name)
        given = vended(lake, is_engine=request.state.caller.is_engine)
        return JSONResponse({"storage-credentials": _credentials(lake, given)})

    def _views(self, request: Request) -> Response:
        warehouse, role = self._place(request)
        self._warehouses.require_namespace(warehouse, role, _part(request, "namespace"))
        return JSONResponse({"identifiers": [], "next-page-token": None})

    def _view(self, request: Request) -> Response:
        raise no_view(_part(request, "namespace"), _part(request, "view"))


def _part(request: Request, name: str) -> str:
    """A part of the path, decoded."""
    return unquote(request.path_params[name])


def _credentials(lake: Lake, given: Mapping[str, str]) -> list[dict[str, Any]]:
    """Keys for the data and for what is generated, each with all that it takes to reach the store.

    DuckDB looks nowhere else for that. And it takes a single one to be for the table's location alone, where the data
    is not: so there are two, also where one is inside of the other.
    """
    if not given:
        return []
    places = (lake.data_path, beside(lake.data_path))
    return [{"prefix": place, "config": {**settings(lake), **given}} for place in places]


def _answer(act: Callable[[Request], Response], *, body: bool = False) -> Callable[[Request], Awaitable[Response]]:
    """A route: the work is done by a thread, and what is refused is told in the protocol's form."""

    async def answer(request: Request) -> Response:
        try:
            if body:
                request.state.body = await request.body()
            return await run_in_threadpool(act, request)
        except ProtocolError as error:
            return JSONResponse(error.as_body(), error.code)

    return answer


def _refuser(deed: str) -> Callable[[Request], Response]:
    def refuse(_: Request) -> Response:
        raise unsupported(deed)

    return refuse


def _oauth_error(code: int, kind: str, message: str) -> Response:
    return JSONResponse({"error": kind, "error_description": message}, code)


def _page(request: Request, items: list[Any]) -> tuple[list[Any], str | None]:
    """A part of a list, for clients that ask for parts: a token is the place where the next one begins."""
    size, token = request.query_params.get("pageSize"), request.query_params.get("pageToken")
    try:
        first = int(token) if token else 0
        count = int(size) if size else None
        if first < 0 or (count is not None and count < 1):
            raise ValueError
    except ValueError:
        raise bad_request("pageToken and pageSize are numbers.") from None
    if count is None:
        return items[first:], None
    rest = first + count
    return items[first:rest], str(rest) if rest < len(items) else None

"""Who gets in: tokens, roles, hosts and origins, and TLS."""

from __future__ import annotations

import datetime as dt
import ipaddress
import logging
import ssl
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from runnel.catalog.tokens import create_token, list_tokens, revoke_token
from runnel.errors import UserError
from runnel.http.place import HttpPlace, Listen
from runnel.http.server import HttpServer, Tls
from tests.iceberg.clients import catalog, ducks, serving
from tests.lake.duck import Duck

CONFIG = "/iceberg/v1/config"


@pytest.fixture
def closed(dsn: str, lake: str, duck: Callable[..., Duck], tmp_path: Path) -> Iterator[HttpServer]:
    """A server that wants a token of everybody, and a lake with two tables."""
    client = duck(lake)
    client.run("CREATE TABLE open AS SELECT range AS id FROM range(100)")
    client.run("CREATE TABLE shut AS SELECT range AS id FROM range(100)")
    with serving(dsn, tmp_path / "http", loopback_reads=False) as server:
        yield server


def token_of(server: HttpServer, folder: Path) -> str:
    return (folder / "http" / "token").read_text().strip()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_everything_needs_a_token(closed: HttpServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert requests.get(closed.url, timeout=10).status_code == 200, "the page itself holds nothing"
    for path in ("/api/overview", "/metrics", CONFIG, "/iceberg/v1/lake/namespaces", "/nothing"):
        for headers in ({}, bearer("rnl_wrong")):
            answer = requests.get(closed.url + path, headers=headers, timeout=10)
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "NotAuthorizedException"
            assert answer.headers["WWW-Authenticate"] == "Bearer"
    token = token_of(closed, tmp_path)
    assert requests.get(closed.url + CONFIG, headers=bearer(token), timeout=10).status_code == 200
    assert requests.get(closed.url + "/nothing", headers=bearer(token), timeout=10).status_code == 404
    assert token not in caplog.text


def test_the_servers_token_is_its_owners_alone_and_stays(tmp_path: Path) -> None:
    place = HttpPlace(tmp_path / "http")
    token = place.token()
    assert stat.S_IMODE(place.token_file.stat().st_mode) == 0o600
    assert place.token() == token and len(token) > 40
    place.token_file.chmod(0o644)
    with pytest.raises(UserError, match="read by other users"):
        place.token()


def test_a_machine_that_is_trusted_reads_without_a_token_and_writes_nothing(
    dsn: str, lake: str, duck: Callable[..., Duck], tmp_path: Path
) -> None:
    duck(lake)
    with serving(dsn, tmp_path / "http") as server:
        assert requests.get(server.url + CONFIG, timeout=10).status_code == 200
        assert requests.get(server.url + CONFIG, headers=bearer("rnl_wrong"), timeout=10).status_code == 401
        wrote = requests.post(f"{server.url}/iceberg/v1/lake/namespaces", json={"namespace": ["x"]}, timeout=10)
        assert wrote.status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_other_web_pages_are_refused(
    headers: dict[str, str], dsn: str, lake: str, duck: Callable[..., Duck], tmp_path: Path
) -> None:
    duck(lake)
    with serving(dsn, tmp_path / "http") as server:
        for more in ({}, bearer(token_of(server, tmp_path))):
            answer = requests.get(server.url + CONFIG, headers=headers | more, timeout=10)
            assert answer.status_code == 403 and answer.json()["error"]["type"] == "ForbiddenException"
        own = {"Origin": server.url, "Host": server.url.removeprefix("http://")}
        assert requests.get(server.url + CONFIG, headers=own, timeout=10).status_code == 200
        named = {"Host": f"localhost:{server.url.rpartition(':')[2]}"}
        assert requests.get(server.url + CONFIG, headers=named, timeout=10).status_code == 200


def test_a_token_reads_what_its_role_may_select(
    closed: HttpServer, db: psycopg.Connection[Any], duck: Callable[..., Duck], tmp_path: Path
) -> None:
    standins(db)
    db.execute("DROP ROLE IF EXISTS http_analyst; CREATE ROLE http_analyst")
    try:
        db.execute("GRANT USAGE ON SCHEMA lake TO http_analyst; GRANT SELECT ON lake.open TO http_analyst")
        number, token = create_token(db, "http_analyst", "a dashboard")
        stored = db.execute("SELECT digest::text FROM pgtrickle.pgt_tokens").fetchall()
        assert token not in str(stored)
        assert [(each.token_id, each.role, each.label) for each in list_tokens(db)] == [
            (number, "http_analyst", "a dashboard")
        ]
        analyst = catalog(closed, token=token)
        assert analyst.list_tables("main") == [("main", "open")]
        assert not analyst.table_exists("main.shut")
        assert analyst.load_table("main.open").scan().to_arrow().num_rows == 100
        missing = requests.get(
            f"{closed.url}/iceberg/v1/lake/namespaces/main/tables/shut", headers=bearer(token), timeout=10
        )
        assert missing.status_code == 404 and missing.json()["error"]["type"] == "NoSuchTableException"
        admin = catalog(closed, token=token_of(closed, tmp_path))
        assert admin.list_tables("main") == [("main", "open"), ("main", "shut")]
        # As Iceberg's clients ask for a token with what they were configured with.
        oauth = {"credential": f"me:{token}", "oauth2-server-uri": f"{closed.url}/iceberg/v1/oauth/tokens"}
        by_secret = catalog(closed, **oauth)
        assert by_secret.list_tables("main") == [("main", "open")]
        db.execute("REVOKE SELECT ON lake.open FROM http_analyst")
        assert analyst.list_namespaces() == []
        assert revoke_token(db, number) and not revoke_token(db, number)
        until_refused(closed, token)
    finally:
        db.execute("DROP OWNED BY http_analyst; DROP ROLE http_analyst")


def test_rows_that_a_policy_hides_are_not_read_as_files(
    dsn: str, db: psycopg.Connection[Any], duck: Callable[..., Duck], data_path: str, client: Any, tmp_path: Path
) -> None:
    """A file has all rows: of a table with row security only those who are exempt from it get any."""
    duck(data_path).run("CREATE TABLE first (i INTEGER)")
    db.execute("SELECT pgtrickle.attach_ducklake('lake', catalog_schema => 'ducklake')")
    db.execute("CREATE TABLE base (id int, who text); INSERT INTO base VALUES (1, 'http_analyst'), (2, 'other')")
    client.create_stream_table("hers", "SELECT id, who FROM base", sink="ducklake")
    db.execute("DROP ROLE IF EXISTS http_analyst; CREATE ROLE http_analyst")
    try:
        db.execute("GRANT SELECT ON hers TO http_analyst")
        _, token = create_token(db, "http_analyst", "")
        with serving(dsn, tmp_path / "http", loopback_reads=False) as server:
            analyst = catalog(server, token=token)
            (name,) = [each for space in analyst.list_namespaces() for each in analyst.list_tables(space)]
            assert name[-1] == "hers" and analyst.load_table(name).scan().to_arrow().num_rows == 2
            db.execute("ALTER TABLE hers ENABLE ROW LEVEL SECURITY")
            db.execute("CREATE POLICY own ON hers FOR SELECT USING (who = current_user)")
            assert analyst.list_namespaces() == [] and not analyst.table_exists(name)
            db.execute("ALTER ROLE http_analyst BYPASSRLS")
            assert analyst.load_table(name).scan().to_arrow().num_rows == 2
            admin = catalog(server, token=token_of(server, tmp_path))
            assert admin.load_table(name).scan().to_arrow().num_rows == 2
    finally:
        db.execute("DROP OWNED BY http_analyst; DROP ROLE http_analyst")


def test_a_wrong_secret_gets_no_token(closed: HttpServer, tmp_path: Path) -> None:
    url = f"{closed.url}/iceberg/v1/oauth/tokens"
    form = {"grant_type": "client_credentials", "client_id": "x", "client_secret": "rnl_wrong", "scope": "catalog"}
    answer = requests.post(url, data=form, timeout=10)
    assert answer.status_code == 401 and answer.json()["error"] == "invalid_client"
    token = token_of(closed, tmp_path)
    good = requests.post(url, data=form | {"client_secret": token}, timeout=10)
    assert good.status_code == 200 and good.json()["token_type"] == "bearer"  # noqa: S105
    assert requests.get(closed.url + CONFIG, headers=bearer(good.json()["access_token"]), timeout=10).ok
    other = requests.post(url, data={"grant_type": "password"}, timeout=10)
    assert other.status_code == 400 and other.json()["error"] == "unsupported_grant_type"


def test_nobody_but_the_engine_makes_tokens(dsn: str, db: psycopg.Connection[Any]) -> None:
    with pytest.raises(UserError, match="no role nobody_at_all"):
        create_token(db, "nobody_at_all")
    db.execute("DROP ROLE IF EXISTS http_guest; CREATE ROLE http_guest LOGIN")
    try:
        db.execute("SET ROLE http_guest")
        for act in (lambda: create_token(db, "postgres"), lambda: list_tokens(db), lambda: revoke_token(db, 1)):
            with pytest.raises(UserError, match="only the engine"):
                act()
    finally:
        db.execute("RESET ROLE; DROP ROLE http_guest")


def test_tls_by_certificate_files(dsn: str, tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    with serving(dsn, tmp_path / "http", tls=tls) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert requests.get(server.url + "/", verify=str(tls.certificate), timeout=10).ok
        with pytest.raises(requests.exceptions.SSLError):
            requests.get(server.url + "/", timeout=10)
    with pytest.raises(UserError, match="no file"):
        HttpServer(dsn, HttpPlace(tmp_path / "http"), tls=Tls(tmp_path / "no", tls.key)).start()


def test_the_port_stays_and_a_taken_one_is_told(dsn: str, tmp_path: Path) -> None:
    with serving(dsn, tmp_path / "http") as first:
        url = first.url
        port = int(url.rpartition(":")[2])
        assert HttpPlace(tmp_path / "http").url == url
        with pytest.raises(UserError, match="cannot listen"), serving(dsn, tmp_path / "b", listen=Listen(port=port)):
            pass
    with serving(dsn, tmp_path / "http") as second:
        assert second.url == url
    with pytest.raises(requests.ConnectionError):
        requests.get(url, timeout=2)


def until_refused(server: HttpServer, token: str) -> None:
    """A token may be taken for a second after it was revoked."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        answer = requests.get(server.url + CONFIG, headers=bearer(token), timeout=10)
        if answer.status_code == 401:
            return
    raise AssertionError("the token is still taken")


def standins(db: psycopg.Connection[Any]) -> None:
    """What an engine does when it follows a lake."""
    from runnel.lake.attached import load_lake
    from runnel.lake.format.catalog import head, tables
    from runnel.sources.ducklake.standins import bring_in_step

    lake = load_lake(db, "lake")
    bring_in_step(db, lake, tables(db, lake, head(db, lake)))


def certificate(folder: Path) -> Tls:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "runnel")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert, secret = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    assert ssl.create_default_context(cafile=str(cert))
    return Tls(cert, secret)


def test_duckdb_reads_with_a_token(closed: HttpServer, db: psycopg.Connection[Any], tmp_path: Path) -> None:
    with ducks(closed, token=token_of(closed, tmp_path)) as ice:
        assert ice.execute("SELECT count(*) FROM ice.main.open").fetchall() == [(100,)]


def test_a_database_that_is_away_is_told(dsn: str, tmp_path: Path) -> None:
    with serving("host=127.0.0.1 port=1 dbname=x", tmp_path / "http", loopback_reads=False) as server:
        answer = requests.get(server.url + CONFIG, headers=bearer("rnl_some"), timeout=30)
        assert answer.status_code == 503 and answer.json()["error"]["type"] == "ServiceUnavailableException"

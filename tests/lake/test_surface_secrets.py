"""Credentials at rest: sealed with a key that is not in the database, bound to their place."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import psycopg
import pytest

from runnel.catalog import secrets
from runnel.errors import UserError
from runnel.lake import attached as lakes
from runnel.lake.format.model import Lake

SECRET = "s3cr3t-that-nobody-may-see"  # noqa: S105  (it is a test's)


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(secrets.KEY_VARIABLE, raising=False)
    monkeypatch.setattr(secrets, "_ring", {})


def test_a_sealed_secret_opens_only_with_its_key_and_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = secrets.hold_key(tmp_path)
    assert public is not None
    box = secrets.seal(SECRET, public, "lake a, secret")
    assert SECRET not in box
    assert secrets.unseal(box, "lake a, secret") == SECRET
    with pytest.raises(UserError, match="moved there"):
        secrets.unseal(box, "lake b, secret")
    monkeypatch.setattr(secrets, "_ring", {})
    with pytest.raises(UserError, match="another key"):
        secrets.unseal(box, "lake a, secret")


def test_the_key_file_is_private_and_stays(tmp_path: Path) -> None:
    first = secrets.hold_key(tmp_path)
    file = tmp_path / secrets.KEY_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secrets.hold_key(tmp_path) == first
    file.chmod(0o644)
    with pytest.raises(UserError, match="read by other users"):
        secrets.hold_key(tmp_path)


def test_the_environment_comes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secrets.KEY_VARIABLE, "a key of more than twenty characters")
    assert secrets.hold_key(tmp_path) == secrets.hold_key(None)
    assert not (tmp_path / secrets.KEY_FILE).exists()
    monkeypatch.setenv(secrets.KEY_VARIABLE, "short")
    with pytest.raises(UserError, match="at least"):
        secrets.hold_key(tmp_path)


def test_what_the_catalog_holds_is_unreadable_without_the_key(
    db: psycopg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = Lake(
        "far", "ducklake", "s3://bucket/x/", dsn=f"host=h password={SECRET}",
        options={"access_key_id": "AKIA", "secret_access_key": SECRET, "region": "eu"},
    )  # fmt: skip
    with pytest.raises(UserError, match="no key"):
        lakes.save_lake(db, given)
    lakes.publish_sealing_key(db, secrets.hold_key(tmp_path))
    lakes.save_lake(db, given, is_default=True)
    assert lakes.load_lakes(db) == {"far": given}
    assert lakes.default_lake_name(db) == "far"
    stored = db.execute("SELECT to_jsonb(l)::text FROM pgtrickle.pgt_lakes l").fetchone()
    assert stored is not None
    assert SECRET not in stored[0] and "AKIA" not in stored[0] and '"region": "eu"' in stored[0]
    lakes.set_lake_option(db, "far", "secret_access_key", None)
    lakes.set_lake_option(db, "far", "access_key_id", "other")
    assert dict(lakes.load_lake(db, "far").options) == {"access_key_id": "other", "region": "eu"}
    monkeypatch.setattr(secrets, "_ring", {})
    with caplog.at_level(logging.WARNING):
        assert lakes.load_lakes(db) == {}
    assert "another key" in caplog.text and SECRET not in caplog.text + repr(given)
    with pytest.raises(UserError, match="another key"):
        lakes.load_lake(db, "far")
    with pytest.raises(UserError, match='no lake "near"') as missing:
        lakes.load_lake(db, "near")
    assert "far" in (missing.value.hint or "")


def test_others_may_list_lakes_but_not_read_what_is_sealed(db: psycopg.Connection) -> None:
    lakes.save_lake(db, Lake("near", "ducklake", "/data/"))
    db.execute("CREATE ROLE lake_guest")
    try:
        db.execute("SET ROLE lake_guest")
        assert db.execute("SELECT name, data_path, remote FROM pgtrickle.pgt_lakes").fetchall() == [
            ("near", "/data/", False)
        ]
        for column in ("dsn", "options"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                db.execute(f"SELECT {column} FROM pgtrickle.pgt_lakes")
    finally:
        db.execute("RESET ROLE")
        db.execute("DROP ROLE lake_guest")


def test_settings_of_the_database_are_credentials_too(db: psycopg.Connection) -> None:
    lakes.save_lake(db, Lake("cloud", "ducklake", "s3://bucket/"))
    lakes.save_lake(db, Lake("near", "other", "/data/"))
    db.execute("SET pg_trickle.ducklake_s3_access_key = 'AKIA'")
    db.execute(f"SET pg_trickle.ducklake_s3_secret_key = '{SECRET}'")
    found = lakes.load_lakes(db)
    assert dict(found["cloud"].options) == {"access_key_id": "AKIA", "secret_access_key": SECRET}
    assert not found["near"].options

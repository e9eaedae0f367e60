"""Folders and object stores: whole files, parts, lists, and what is said when they fail."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import pyarrow as pa
import pytest

from runnel.errors import TransientError, UserError
from runnel.lake.store.storage import StoreError, open_store
from tests.lake.flaky import Flaky
from tests.lake.s3 import S3, SECRET_KEY

BIG = os.urandom(6 << 20)


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, s3: S3) -> tuple[str, dict[str, str]]:
    if request.param == "s3":
        return s3.bucket(), s3.options
    return f"{tmp_path}/", {}


def test_files_are_written_read_listed_and_removed(place: tuple[str, dict[str, str]]) -> None:
    url, options = place
    store = pickle.loads(pickle.dumps(open_store(url, options)))  # noqa: S301  (as Spark sends it to its tasks)
    small, big, odd = f"{url}t/a.parquet", f"{url}t/u/big.parquet", f"{url}t/k=a%2Fb é'/x y.parquet"
    store.put(small, b"0123456789")
    store.put(big, memoryview(pa.py_buffer(BIG)))
    store.put(odd, b"odd")
    assert store.get(small) == store.get("t/a.parquet") == b"0123456789"
    assert store.get(big) == BIG
    assert store.get(odd) == b"odd"
    assert store.get_range(small, 2, 3) == b"234"
    assert store.get_ranges(big, [(0, 4), (1 << 20, (1 << 20) + 9)]) == [BIG[:4], BIG[1 << 20 : (1 << 20) + 9]]
    assert store.size(big) == len(BIG)
    assert {each.path: each.size for each in store.list(f"{url}t/")} == {small: 10, big: len(BIG), odd: 3}
    assert all(abs(each.modified.timestamp() - time.time()) < 60 for each in store.list(url))
    assert store.exists(odd)
    store.delete([odd, small, f"{url}never"])
    assert not store.exists(odd)
    assert [each.path for each in store.list(url)] == [big]
    with pytest.raises(StoreError, match=r"a\.parquet: there is no such file"):
        store.get(small)


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    store = open_store(f"{tmp_path}/")
    for name in ("a.parquet", ".a.parquet.1f.part", ".b.parquet.1f.part"):
        (tmp_path / name).write_bytes(b"half")
    store.discard([f"{tmp_path}/a.parquet", f"{tmp_path}/never/c.parquet"])
    assert [path.name for path in tmp_path.iterdir()] == [".b.parquet.1f.part"]


def test_the_environment_gives_credentials(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    url = s3.bucket()
    # Another timeout makes another client, whose environment is this one.
    store = open_store(url, {"timeout": "29"})
    store.put(f"{url}a", b"a")
    assert s3.files(url) == {"a"}


def test_wrong_settings_are_told(s3: S3, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither an absolute path nor a URL"):
        open_store("lake/data")
    with pytest.raises(UserError, match="ftp://"):
        open_store("ftp://host/x")
    url = s3.bucket()
    with pytest.raises(UserError, match="setting that it does not know"):
        open_store(url, {"acess_key": "x"}).put(f"{url}a", b"")
    wrong = {**s3.options, "secret_access_key": "entirely-wrong-and-secret"}
    with pytest.raises(StoreError) as failed:
        open_store(url, wrong).put(f"{url}a", b"x")
    assert (
        "entirely-wrong" not in f"{failed.value} {failed.value.hint} {failed.value.__cause__} {open_store(url, wrong)}"
    )
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"cannot write .*: (Not a directory|File exists)"):
        open_store("/").put(f"{tmp_path}/file/x", b"")


def test_a_store_that_hiccups_is_asked_again_and_one_that_is_down_is_reported(flaky: Flaky) -> None:
    url = flaky.s3.bucket()
    options = {**flaky.s3.options, "retry_timeout": "2", "max_retries": "2", "timeout": "1"}
    store = open_store(url, options)
    flaky.be("refuse")
    started = time.monotonic()
    with pytest.raises(TransientError) as failed:
        store.put(f"{url}a", b"a")
    assert time.monotonic() - started < 20
    assert SECRET_KEY not in str(failed.value)
    assert str(failed.value).startswith(f"cannot write {url}a: ")
    assert "\n" not in str(failed.value)
    for trouble in ("full", "cut", "hang"):
        flaky.be(trouble)
        with pytest.raises(StoreError, match="cannot write"):
            store.put(f"{url}{trouble}", b"a" * 100_000)
    assert flaky.s3.files(url) == set()
    flaky.be("none")
    store.put(f"{url}a", b"a")
    assert store.get(f"{url}a") == b"a"

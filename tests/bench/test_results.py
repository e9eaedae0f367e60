"""What a run remembers, and how one goes on after another."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from runnel.bench.report import grids, markdown
from runnel.bench.results import QueryResult, Results, Sample, resume, save
from runnel.bench.workload import Round, Workload


def _results() -> Results:
    results = Results("Title", "setup", finished=["small/0"])
    for name, ms in (("q1", 50.0), ("q2", 200.0)):
        full = Sample(400.0, "FULL")
        taken = [Sample(ms, "DIFFERENTIAL", changes=3, rows_read={"t": 7, "u": None}, timings={"read": 1.0})]
        results.queries[name] = QueryResult(name, full=full, rounds={"small": taken, "large": list(taken)})
    return results


def test_a_run_goes_on_where_another_one_stopped(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    save(_results(), path)
    again = resume(path, "setup")
    assert again is not None
    assert again.queries["q1"].rounds["small"] == _results().queries["q1"].rounds["small"]
    assert again.queries["q1"].rounds["large"] == [], "the round was not finished, so it starts again"
    assert not again.failed
    assert resume(path, "another setup") is None
    assert resume(tmp_path / "nothing.json", "setup") is None


def test_a_step_that_ended_the_process_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results = _results()
    results.running = ("q2", "round large")
    save(results, path)
    again = resume(path, "setup")
    assert again is not None
    assert again.failed == {"q2": "round large: the process ended"}
    assert again.running is None


def test_ratios_leave_out_what_did_not_change() -> None:
    results = _results()
    assert results.geometric_mean("small") == pytest.approx(4)  # of 8 and 2
    results.queries["q2"].rounds["small"] = [Sample(1.0, "DIFFERENTIAL", changes=0)]
    assert results.geometric_mean("small") == pytest.approx(8)
    assert results.geometric_mean("never run") is None


def test_the_page_shows_figures_and_failures() -> None:
    results = _results()
    results.queries["q3"] = QueryResult("q3", error="create: a | b\nis not possible")
    nothing = Round("small", "", _nothing)
    workload = Workload("Title", "s", "data", "about", lambda *_: None, {}, (nothing,), nothing)
    page = markdown("Title", "setup", [("cores", "2")], grids(results, workload))
    assert "| q1 |  |  | 400 ms | 50 ms (8.0x) |  |  |" in page
    assert "| q1 | 3 / 7+ / 0 / 0 |" in page
    assert "t 7" in page and "u scan" in page
    assert "| q3 | create: a \\| b is not possible |" in page


def _nothing(conn: psycopg.Connection, seed: int) -> None:
    raise AssertionError("nobody asked for changes")

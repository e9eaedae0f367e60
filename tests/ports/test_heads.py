"""Every head of a plan is in every table of heads, whole; one that is in none fails, and is not taken for another."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from runnel.apply.heads import HEAD_TABLES, HeadTables, state_of, temporary_of
from runnel.explain.access import is_one_row
from runnel.explain.render import render_plan
from runnel.plan.stage import Head, Plan, Stage
from runnel.refresh.heads import HEADS, operations
from runnel.refresh.heads.operations import HeadOperations

KINDS = typing.get_args(Head)


@dataclass(frozen=True)
class Unheard:
    """A head that somebody has just invented."""


def test_there_are_heads() -> None:
    assert len(KINDS) == len(set(KINDS)) > 1


@pytest.mark.parametrize("table", [HEADS, HEAD_TABLES], ids=["refresh", "tables"])
def test_a_table_has_exactly_the_heads(table: Mapping[type, object]) -> None:
    assert set(table) == set(KINDS)


@pytest.mark.parametrize(("table", "entry"), [(HEADS, HeadOperations), (HEAD_TABLES, HeadTables)])
@pytest.mark.parametrize("head", KINDS, ids=lambda head: head.__name__)
def test_every_operation_of_a_head_can_be_called(table: Mapping[type, object], entry: Any, head: type) -> None:
    found: Any = table[head]
    assert type(found) is entry
    fields = dataclasses.fields(found)
    assert fields
    assert [f.name for f in fields if not callable(getattr(found, f.name))] == []


@pytest.mark.parametrize("head", KINDS, ids=lambda head: head.__name__)
def test_a_stage_is_led_by_its_own_head(head: Any) -> None:
    stage = Stage(0, (), object.__new__(head), ())
    assert operations(stage) is HEADS[head]


def test_an_unknown_head_fails() -> None:
    head: Any = Unheard()
    tables: Any = None
    stage = Stage(0, (), head, ())
    for ask in (
        lambda: operations(stage),
        lambda: state_of(stage, tables),
        lambda: temporary_of(stage, tables),
    ):
        with pytest.raises(KeyError):
            ask()


def test_an_unknown_head_is_not_explained_as_rows() -> None:
    head: Any = Unheard()
    plan = Plan((Stage(0, (), head, ()),), ())
    with pytest.raises(AssertionError):
        list(render_plan(plan))
    with pytest.raises(AssertionError):
        is_one_row(plan, plan.stages[0])

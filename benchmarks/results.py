"""Answers as data, beside the page that is made of them: measuring one question again leaves the others alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.report import Answer, Grid, Target

FILE = Path(__file__).with_name("results.json")


def load() -> tuple[Grid | None, dict[str, Answer]]:
    """The machine's facts, and the answers there are, by name of the question."""
    if not FILE.exists():
        return None, {}
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    return Grid(**stored["machine"]), {name: _answer(each) for name, each in stored["answers"].items()}


def save(facts: Grid, answers: Mapping[str, Answer]) -> None:
    stored = {"machine": asdict(facts), "answers": {name: asdict(each) for name, each in answers.items()}}
    FILE.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _answer(stored: dict[str, Any]) -> Answer:
    return Answer(
        question=stored["question"],
        setup=stored["setup"],
        grid=Grid(**stored["grid"]),
        breakdown=Grid(**stored["breakdown"]) if stored["breakdown"] else None,
        # Answers of earlier runs do not say it.
        unit=stored.get("unit", Answer.unit),
        targets=tuple(Target(**each) for each in stored["targets"]),
        notes=tuple(stored["notes"]),
    )

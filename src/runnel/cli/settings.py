"""Where the values of the options come from: a flag, else the environment, else `runnel.toml`, else the default.

One file is read: the one named by --config or RUNNEL_CONFIG, else `runnel.toml` in the current directory, else
the one in the home of the stack. Paths in it are relative to the file.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from runnel.errors import UserError

FILE = "runnel.toml"
CONFIG_VARIABLE = "RUNNEL_CONFIG"


@dataclass(frozen=True, slots=True)
class Setting:
    """One option that can also be set in the environment and in the file."""

    name: str
    default: str | None = None
    is_path: bool = False
    allowed: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        return f"RUNNEL_{self.name.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
JOINS = ("postgres", "spark")
CDC_MODES = ("trigger", "auto", "wal")

# These three name the server: of one place only one may, and the next place counts when it names none.
TARGETS = ("dsn", "dsn_file", "home")

SETTINGS = {
    each.name: each
    for each in (
        Setting("dsn"),
        Setting("dsn_file", is_path=True),
        Setting("home", "~/.runnel", is_path=True),
        Setting("password_file", is_path=True),
        Setting("master", "local[*]"),
        Setting("data_path", is_path=True),
        Setting("verify_every"),
        Setting("tasks_above", "100000"),
        Setting("workers"),
        Setting("joins", "postgres", allowed=JOINS),
        Setting("spark_package", is_path=True),
        Setting("cdc_mode", "trigger", allowed=CDC_MODES),
        Setting("http", "127.0.0.1"),
        Setting("http_cert", is_path=True),
        Setting("http_key", is_path=True),
        Setting("log_level", "info", allowed=LOG_LEVELS),
        Setting("log_format", "text", allowed=LOG_FORMATS),
        Setting("log_file", is_path=True),
    )
}


@dataclass(frozen=True, slots=True)
class Value:
    """What holds for a setting, and who said so."""

    text: str | None
    origin: str


@dataclass(frozen=True, slots=True)
class Common:
    """The options that every command has."""

    config: Path | None = None
    dsn_file: Path | None = None
    password_file: Path | None = None


NONE_GIVEN = Common()

common: ContextVar[Common] = ContextVar("common", default=NONE_GIVEN)


def effective(**flags: str | Path | None) -> dict[str, Value]:
    """Every setting, by name, with its origin. `flags` are what the command line gave; None means nothing."""
    general = common.get()
    given = {"dsn_file": general.dsn_file, "password_file": general.password_file, **flags}
    by_flag = {key: str(value) for key, value in given.items() if value is not None}
    _one_target(by_flag, "on the command line", lambda name: SETTINGS[name].flag)
    by_environment = {key: os.environ[each.variable] for key, each in SETTINGS.items() if os.environ.get(each.variable)}
    path = config_file(by_flag.get("home") or by_environment.get("home"))
    by_file = read_config(path) if path else {}
    nearest_first = (
        {key: Value(text, f"flag {SETTINGS[key].flag}") for key, text in by_flag.items()},
        {key: Value(text, f"environment {SETTINGS[key].variable}") for key, text in by_environment.items()},
        {key: Value(text, f"file {path}") for key, text in by_file.items()},
        {key: Value(each.default, "default") for key, each in SETTINGS.items()},
    )
    found = {key: next(place[key] for place in nearest_first if key in place) for key in SETTINGS}
    for key, value in found.items():
        _check(SETTINGS[key], value)
    # A server that a nearer place names hides the one that a farther place names, whatever its form.
    target = next(key for place in (*nearest_first[:-1], {"home": None}) for key in TARGETS if key in place)
    return found | {key: Value(None, f"not used: {target} counts") for key in TARGETS if key != target}


def config_file(home: str | None) -> Path | None:
    """The file to read, if there is one."""
    named = common.get().config or os.environ.get(CONFIG_VARIABLE)
    if named is not None:
        path = Path(named).expanduser()
        if not path.is_file():
            raise UserError(f"There is no configuration file {path}.", hint="See --config and RUNNEL_CONFIG.")
        return path.resolve()
    for directory in (Path.cwd(), Path(home or "~/.runnel").expanduser()):
        path = directory / FILE
        if path.is_file():
            _refuse_strangers(path)
            return path.resolve()
    return None


def read_config(path: Path) -> dict[str, str]:
    """The settings in a file, checked."""
    try:
        words = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}", hint="It is TOML: home = '/srv/runnel'") from None
    # A project's environments are in a file of the same name, and mean nothing to other commands.
    words.pop("environments", None)
    for key, value in words.items():
        if key not in SETTINGS:
            close = difflib.get_close_matches(key.replace("-", "_"), SETTINGS, n=1)
            meant = f"Did you mean {close[0]}?" if close else f"Known are: {', '.join(SETTINGS)}."
            raise UserError(f"{path}: there is no setting {key}.", hint=meant)
        if not isinstance(value, str):
            raise UserError(f"{path}: {key} must be a text.", hint=f'Write: {key} = "..."')
    _one_target(words, f"in {path}", lambda name: name)
    return {key: _beside(path, value) if SETTINGS[key].is_path else value for key, value in words.items()}


def _one_target(given: Mapping[str, object], where: str, shown: Callable[[str], str]) -> None:
    named = [name for name in TARGETS if name in given]
    if len(named) > 1:
        first, second = (shown(name) for name in named[:2])
        raise UserError(
            f"{first} and {second} exclude each other ({where}).", hint="A home directory holds its own server."
        )


def _check(setting: Setting, value: Value) -> None:
    if setting.allowed and value.text not in setting.allowed:
        raise UserError(
            f"{value.text!r} is no {setting.name} ({value.origin}).", hint=f"Use one of {', '.join(setting.allowed)}."
        )


def _beside(path: Path, value: str) -> str:
    return value if "://" in value else str(path.parent / Path(value).expanduser())


def _refuse_strangers(path: Path) -> None:
    """A file found by itself could send a command, and a password with it, to somebody else's server."""
    owner = path.stat().st_uid
    if owner not in (0, os.geteuid()):
        raise UserError(
            f"{path} belongs to another user and is not read.",
            hint=f"Name it with --config {path} when you trust it, or run the command elsewhere.",
        )

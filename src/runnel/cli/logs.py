"""The log of `runnel up`: one line per event with time, level and place, as text or JSON, without secrets."""

from __future__ import annotations

import datetime as dt
import json
import logging
import logging.handlers
from collections.abc import Sequence
from pathlib import Path

from runnel.dsn import without_secrets
from runnel.errors import RunnelError, UserError
from runnel.model.about import known

LARGEST = 16 * 1024 * 1024
KEPT = 5

log = logging.getLogger("runnel.up")


class TextFormat(logging.Formatter):
    """2026-11-16 08:15:00.123 UTC WARNING engine.core: lost the database"""

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        lines = [record.getMessage(), *_trace(self, record)]
        time = _time(record)
        stamp = f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03d} {time:%Z}"
        return without_secrets(f"{stamp} {record.levelname:<7} {_place(record)}: " + "\n".join(lines), *self._secrets)


class JsonFormat(logging.Formatter):
    """{"time": .., "level": .., "logger": .., "message": .., "stream_table": .., "refresh_id": .., "trace": ..}"""

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, str | int] = {
            "time": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": _place(record),
            "message": without_secrets(record.getMessage(), *self._secrets),
            **known(),
        }
        trace = _trace(self, record)
        if trace:
            said["trace"] = without_secrets(trace[0], *self._secrets)
        return json.dumps(said, ensure_ascii=False)


def configure(level: str, form: str, file: str | None, secrets: Sequence[str], *, terminal: bool = True) -> None:
    """Send Runnel's log to standard error, and to a file that is rotated; other libraries only speak up in need."""
    chosen = JsonFormat(secrets) if form == "json" else TextFormat(secrets)
    handlers: list[logging.Handler] = [logging.StreamHandler()] if terminal else []
    if file is not None:
        handlers.append(_file_handler(Path(file)))
    root = logging.getLogger()
    for former in list(root.handlers):
        if getattr(former, "of_runnel", False):
            root.removeHandler(former)
            former.close()
    for handler in handlers:
        handler.setFormatter(chosen)
        handler.of_runnel = True  # type: ignore[attr-defined]
        root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("runnel").setLevel(level.upper())
    logging.captureWarnings(True)


def record_failure(error: RunnelError) -> None:
    """Leave in the log file why the stack ended; the terminal shows it in its own form."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler) and getattr(handler, "of_runnel", False):
            text = " ".join(each for each in (error.message, error.detail, error.hint) if each)
            handler.handle(log.makeRecord(log.name, logging.ERROR, __file__, 0, "%s", (text,), None))


def _file_handler(path: Path) -> logging.Handler:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The log names tables and may quote values of rows: it is for the one who runs the engine.
        path.touch(mode=0o600, exist_ok=True)
        return logging.handlers.RotatingFileHandler(path, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"The log file {path} cannot be written: {error.strerror}.", hint="Choose another --log-file."
        ) from None


def _time(record: logging.LogRecord) -> dt.datetime:
    return dt.datetime.fromtimestamp(record.created).astimezone()


def _place(record: logging.LogRecord) -> str:
    return record.name.removeprefix("runnel.")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    return [formatter.formatException(record.exc_info)] if record.exc_info else []

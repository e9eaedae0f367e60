"""Connection strings: shown without their secrets, completed with a password, and what a failed connection means.

A password must not reach a terminal, a log, an error or the list of processes. Whoever prints a DSN prints
`masked(dsn)`; whoever prints a text that others wrote, and that may hold one, prints `without_secrets(text)`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from runnel.errors import TransientError, UserError

if TYPE_CHECKING:
    import psycopg

MASK = "***"
SECRET_WORDS = ("password", "sslpassword")

# In a URL the password ends at the last @: one that a user forgot to escape is still a password.
_IN_URL = re.compile(r"(\bpostgres(?:ql)?://[^\s:/@'\"]*):[^\s'\"]*@")
_IN_OTHER_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/@'\"]*):[^\s/@'\"]+@", re.IGNORECASE)
_IN_QUERY = re.compile(r"([?&](?:ssl)?password)=[^&\s'\"]*", re.IGNORECASE)
_AS_WORD = re.compile(r"(?<![?&\w])((?:ssl)?password\s*=\s*)(?:'(?:[^'\\]|\\.)*'?|(?:\\.|[^\s\\'\"])+)", re.IGNORECASE)

_FORMS = "A DSN is a URL, postgresql://user@host:5432/database, or words: host=... port=... dbname=... user=..."

_ESCAPES = (
    "In a URL, write % : / @ of a password as %25 %3A %2F %40, or give it in PGPASSWORD or with --password-file FILE."
)


def without_secrets(text: str, *known: str) -> str:
    """A text with every password in it masked: those of connection strings, and the values that are known.

    >>> without_secrets("cannot reach postgresql://ann:pa:s@s@db/shop?sslpassword=x&sslmode=require")
    'cannot reach postgresql://ann:***@db/shop?sslpassword=***&sslmode=require'
    >>> without_secrets("host=db password='it''s' user=ann")
    "host=db password=***'s' user=ann"
    >>> without_secrets("host=db password = a\\\\ b user=ann")
    'host=db password = *** user=ann'
    """
    for pattern, shown in (
        (_IN_URL, rf"\1:{MASK}@"),
        (_IN_OTHER_URL, rf"\1:{MASK}@"),
        (_IN_QUERY, rf"\1={MASK}"),
        (_AS_WORD, rf"\1{MASK}"),
    ):
        text = pattern.sub(shown, text)
    # Longest first, so that one value inside of another leaves no rest behind.
    for value in sorted(filter(None, known), key=len, reverse=True):
        text = text.replace(value, MASK)
    return text


def masked(dsn: str) -> str:
    """A connection string as it may be shown.

    >>> masked("postgresql://ann:secret@db/shop")
    'postgresql://ann:***@db/shop'
    """
    shown = without_secrets(dsn)
    words = _words(dsn)
    if words is None:
        return shown
    # Unusual spellings (percent-encoded keywords) are told by parsing what is left.
    left = _words(shown) or {}
    if any(words.get(key) and left.get(key) not in (None, MASK) for key in SECRET_WORDS):
        return _joined({**words, **{key: MASK for key in SECRET_WORDS if words.get(key)}})
    return shown


def secrets(dsn: str) -> tuple[str, ...]:
    """The values of a connection string that nobody should see."""
    words = _words(dsn) or {}
    return tuple(words[key] for key in SECRET_WORDS if words.get(key))


def without_password(dsn: str) -> str:
    """A connection string that works together with PGPASSWORD or a password file, and may be shown.

    >>> without_password("postgresql://ann:secret@db:5433/shop")
    'user=ann dbname=shop host=db port=5433'
    >>> without_password("postgresql://ann@db/shop")
    'postgresql://ann@db/shop'
    """
    words = readable(dsn)
    if not any(words.get(key) for key in SECRET_WORDS):
        return dsn
    return _joined({key: value for key, value in words.items() if key not in SECRET_WORDS})


def with_password(dsn: str, password: str | None) -> str:
    """A connection string that holds the password, for sessions on machines that do not know it otherwise."""
    words = readable(dsn)
    return dsn if password in (None, "", words.get("password")) else _joined({**words, "password": str(password)})


def readable(dsn: str) -> dict[str, str]:
    """The words of a connection string; one that libpq cannot read is refused without repeating it."""
    from psycopg import ProgrammingError

    try:
        words = _parsed(dsn)
    except ProgrammingError as error:
        # Its message may quote a piece of a password; the name of an option is harmless.
        option = re.search(r'(?:invalid connection option|invalid URI query parameter:?) "(\w+)"', str(error))
        why = f": it has no option {option[1]}" if option else ""
        raise UserError(f"The DSN cannot be read{why}.", hint=f"{_FORMS} {_ESCAPES}") from None
    if "://" in dsn and _cut_at_the_wrong_place(dsn, words):
        raise UserError("The password in the DSN holds a character that a URL takes for its own.", hint=_ESCAPES)
    return words


def connection_failure(error: psycopg.Error, dsn: str) -> TransientError:
    """What it means that a server could not be reached, and what to do."""
    text = without_secrets(str(error).strip() or type(error).__name__, *secrets(dsn))
    words = _words(dsn) or {}
    role, where = words.get("user"), _place(words)
    database = words.get("dbname") or role
    for pattern, message, hint in _CAUSES:
        found = re.search(pattern, text)
        if found:
            names = {"where": where, "role": role, "database": database, **found.groupdict()}
            return TransientError(
                message.format(**names), hint=hint.format(**names), detail=_line_with(pattern, text), sqlstate="08001"
            )
    hint = "Check the DSN, or start the embedded server with `runnel up`."
    return TransientError(f"Cannot connect to PostgreSQL {where}.", hint=hint, detail=text, sqlstate="08001")


# libpq says these in the server's language; another language gets the general answer.
_CAUSES = (
    (
        r'password authentication failed for user "(?P<role>[^"]*)"',
        "PostgreSQL {where} refuses the password of role {role}.",
        "Check PGPASSWORD, the password file (PGPASSFILE, ~/.pgpass, --password-file) or the DSN.",
    ),
    (
        r"no password supplied",
        "PostgreSQL {where} asks for a password, and none was given.",
        "Set PGPASSWORD, put it in ~/.pgpass, or name a file with --password-file FILE.",
    ),
    (
        r'database "(?P<database>[^"]*)" does not exist',
        "There is no database {database} on PostgreSQL {where}.",
        "Create it with CREATE DATABASE, or name another one in the DSN.",
    ),
    (
        r'role "(?P<role>[^"]*)" does not exist',
        "There is no role {role} on PostgreSQL {where}.",
        "Create it with CREATE ROLE, or name another user in the DSN.",
    ),
    (
        r"no pg_hba\.conf entry",
        "PostgreSQL {where} does not let role {role} connect to database {database} from here.",
        "Add a line for it to the server's pg_hba.conf and reload the server.",
    ),
    (
        r"failed to resolve host|could not translate host name|Name or service not known",
        "The host of PostgreSQL {where} is not known.",
        "Check the name of the host in the DSN.",
    ),
    (
        r"Connection refused",
        "Nothing answers {where}.",
        "Is the server running, and is the port right? The embedded server is started with `runnel up`.",
    ),
    (
        r"No such file or directory",
        "There is no PostgreSQL socket {where}.",
        "Is the server running? Name its host and port in the DSN, or start the embedded server with `runnel up`.",
    ),
    (
        r"unsupported startup parameter",
        "A connection pooler stands before PostgreSQL {where}.",
        "Name the server itself: the engine, the relay and `runnel init` need sessions of their own. "
        "Clients (`runnel create`, `runnel status` .., Python) may go through the pooler.",
    ),
    (
        r"timeout expired|timed out",
        "PostgreSQL {where} does not answer in time.",
        "Check host and port, and the firewall on the way to it.",
    ),
)


def _cut_at_the_wrong_place(dsn: str, words: dict[str, str]) -> bool:
    """Whether a raw @ or / of a password has become part of the host, the port or the database."""
    path = dsn.partition("://")[2].partition("?")[0].partition("/")[2]
    port = words.get("port", "0")
    return "@" in words.get("host", "")[1:] or ("@" in path and ("user" not in words or not port.isdecimal()))


def _place(words: dict[str, str]) -> str:
    host = words.get("host") or words.get("hostaddr")
    port = words.get("port", "5432")
    return f"at {host}, port {port}" if host else "on this machine" + (f", port {port}" if "port" in words else "")


def _line_with(pattern: str, text: str) -> str | None:
    """libpq repeats itself for every address, and asks whether the server runs; one line tells as much."""
    line = next((each for each in text.splitlines() if re.search(pattern, each)), "")
    return line.strip().removeprefix("connection failed: ").removeprefix("connection is bad: ") or None


def _words(dsn: str) -> dict[str, str] | None:
    from psycopg import ProgrammingError

    try:
        return _parsed(dsn)
    except ProgrammingError:
        return None


# psycopg is imported at first use: `runnel --help` needs none of it.
def _parsed(dsn: str) -> dict[str, str]:
    from psycopg.conninfo import conninfo_to_dict

    return {key: str(value) for key, value in conninfo_to_dict(dsn).items() if value is not None}


def _joined(words: dict[str, str]) -> str:
    from psycopg.conninfo import make_conninfo

    return make_conninfo("", **words)

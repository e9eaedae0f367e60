"""Which settings an object store has: our own, and those of the library that talks to it."""

from __future__ import annotations

import difflib
from functools import cache

from runnel.errors import UserError

_OWN = ("allow_http", "connect_timeout", "max_retries", "multipart_threshold", "retry_timeout", "timeout",
        "vend_credentials")  # fmt: skip
_USUAL = (
    "access_key_id", "account_key", "account_name", "endpoint", "region", "sas_token", "secret_access_key",
    "service_account_key", "session_token", "virtual_hosted_style_request",
)  # fmt: skip
_KINDS = ("s3://bucket/", "gs://bucket/", "az://container/")


def require_known(option: str, also: tuple[str, ...] = ()) -> None:
    """Refuse an option that no store knows, with the one that was probably meant; `also` are known to the caller."""
    if option in also or is_known(option):
        return
    names = sorted({*_OWN, *_USUAL, *also})
    near = difflib.get_close_matches(option, names, n=1, cutoff=0.6)
    meant = f'Did you mean "{near[0]}"? ' if near else ""
    raise UserError(
        f'there is no option "{option}" of a lake', hint=f"{meant}Options are {', '.join(names)}.", sqlstate="22023"
    )


@cache
def is_known(option: str) -> bool:
    """Whether some kind of store has such a setting.

    >>> is_known("secret_access_key"), is_known("aws_region"), is_known("timeout"), is_known("secret_acess_key")
    (True, True, True, False)
    """
    if option in _OWN or option in _USUAL:
        return True
    from obstore.exceptions import BaseError, UnknownConfigurationKeyError
    from obstore.store import from_url

    for kind in _KINDS:
        try:
            from_url(kind, config={option: ""})  # type: ignore[call-overload]
        except UnknownConfigurationKeyError:
            continue
        except BaseError:
            return True  # known, but nothing to work with on its own
        return True
    return False

"""Parts of files from servers that answer a request for a range with 200 in place of 206.

`rclone serve s3` does so: the bytes are right, the status is not, and obstore insists on it. Such a server is asked by
plain HTTP with a signed address.
"""

from __future__ import annotations

import datetime as dt
import http.client
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

_TRIES = 3


def is_lenient(error: BaseException) -> bool:
    """Whether an error of obstore says that the server ignores the status code of ranges."""
    return "non-partial response" in str(error)


def get_range(client: S3Store | GCSStore | AzureStore, key: str, start: int, length: int, timeout: float) -> bytes:
    """Some bytes of a file. Errors are those of the operating system, without the address, which is a secret."""
    import obstore

    for left in reversed(range(_TRIES)):
        address = obstore.sign(client, "GET", key, dt.timedelta(seconds=60))
        request = urllib.request.Request(  # noqa: S310 - the address is the store's, not a user's
            address, headers={"Range": f"bytes={start}-{start + length - 1}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
                data: bytes = answer.read()
                whole = answer.headers.get("Content-Range") is None
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise FileNotFoundError(key) from None
            if not left or error.code < 500:
                raise OSError(error.code, f"the store answered {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            if not left:
                raise OSError(0, f"the store does not answer: {getattr(error, 'reason', error)}") from None
        else:
            return data[start : start + length] if whole else data
    raise AssertionError("unreachable")

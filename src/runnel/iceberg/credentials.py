"""How clients reach the files of a lake: settings that are no secret for all, keys for those who may have them.

A key opens the whole store, whatever the role of a token may read. So keys are only given to callers who speak for the
engine, and only if the lake says so: `runnel lake set LAKE vend_credentials on`.
"""

from __future__ import annotations

from runnel.lake.format.model import Lake

VEND = "vend_credentials"


def settings(lake: Lake) -> dict[str, str]:
    """What a client has to know of the store, without secrets."""
    if not lake.data_path.startswith(("s3://", "s3a://")):
        return {}
    found = {}
    options = lake.options
    endpoint = options.get("endpoint") or options.get("aws_endpoint")
    if endpoint:
        found["s3.endpoint"] = endpoint
        virtual = options.get("virtual_hosted_style_request", "false").lower() == "true"
        found["s3.path-style-access"] = "false" if virtual else "true"
    region = options.get("region") or options.get("aws_region")
    if region:
        found |= {"s3.region": region, "client.region": region}
    return found


def vended(lake: Lake, *, is_engine: bool) -> dict[str, str]:
    """The lake's own keys, for who may have them."""
    options = lake.options
    if not is_engine or options.get(VEND, "off").lower() not in ("on", "true"):
        return {}
    names = {
        "s3.access-key-id": "access_key_id",
        "s3.secret-access-key": "secret_access_key",
        "s3.session-token": "session_token",
    }
    return {theirs: options[ours] for theirs, ours in names.items() if ours in options}

"""The account that commands sign their requests with, defined once: options that every command has which asks a cluster.

    --access-key / ARIANE_ACCESS_KEY    --secret-key / ARIANE_SECRET_KEY        (the latter keep them out of lists of processes)

They are taken as texts of their own kind that print as `...`, and are handed on to clients (`client`) or to Spark (`options`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.errors import UsageError

if TYPE_CHECKING:
    from ariane.client.settings import ClientSettings

AccessKey = Annotated[
    str, typer.Option(metavar="KEY", envvar="ARIANE_ACCESS_KEY", help="Account at brokers with access control.")
]
SecretKey = Annotated[str, typer.Option(metavar="KEY", envvar="ARIANE_SECRET_KEY", show_default=False, help="Its key.")]
SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help='Option of format("rocketmq"), such as useTls=true; repeatable.'
    ),
]

# What the command or its jobs say in other ways: with these the rows would be others than the tables promise.
RESERVED_OPTIONS = {
    **dict.fromkeys(("namesrv", "nameserver"), "give --namesrv"),
    "accesskey": "give --access-key, or ARIANE_ACCESS_KEY",
    "secretkey": "give --secret-key, or ARIANE_SECRET_KEY",
    **dict.fromkeys(("topic", "topics", "topicspattern", "includesystemtopics"), "each job has its own topics"),
    **dict.fromkeys(("tags", "subexpression", "keys"), "a job reads all messages of its topics"),
    **dict.fromkeys(("startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp"), "a job reads all"),
}


def client_settings(access_key: str, secret_key: str) -> ClientSettings | None:
    """Settings of a client of this account; None without one. UsageError when one half of it is missing."""
    from ariane.client.settings import ClientSettings
    from ariane.protocol.signing import Credentials

    if not _is_given(access_key, secret_key):
        return None
    return ClientSettings(credentials=Credentials(access_key, secret_key))


def source_options(
    namesrv: str, access_key: str, secret_key: str, given: Sequence[str] | None = None
) -> dict[str, str]:
    """Options of format("rocketmq") that all sources share. What it does not know is refused there."""
    found = {"namesrv": namesrv}
    if _is_given(access_key, secret_key):
        found |= {"accessKey": access_key, "secretKey": secret_key}
    for text in given or ():
        name, sign, value = text.partition("=")
        name = name.strip()
        if not sign or not name:
            raise UsageError("--option", name, "write NAME=VALUE, such as useTls=true")
        if fix := RESERVED_OPTIONS.get(name.lower()):
            raise UsageError("--option", name, fix)
        if name.lower() in map(str.lower, found):
            raise UsageError("--option", name, "is given twice: keep one")
        found[name] = value
    return found


def _is_given(access_key: str, secret_key: str) -> bool:
    if bool(access_key) != bool(secret_key):
        missing = "--secret-key" if access_key else "--access-key"
        raise UsageError(missing, None, "an access key and a secret key are given together or not at all")
    return bool(access_key)

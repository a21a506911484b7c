"""Options for the account that signs requests, shared by all commands that talk to a cluster.

    --access-key / ARIANE_ACCESS_KEY    --secret-key / ARIANE_SECRET_KEY        (variables keep keys out of process lists)

`client_settings` passes them to clients, `source_options` to Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.shared_options import CONNECTION
from ariane.errors import UsageError

if TYPE_CHECKING:
    from ariane.client.settings import ClientSettings

AccessKey = Annotated[
    str,
    typer.Option(
        metavar="KEY",
        envvar="ARIANE_ACCESS_KEY",
        help="Access key, for brokers with access control.",
        rich_help_panel=CONNECTION,
    ),
]
SecretKey = Annotated[
    str,
    typer.Option(
        metavar="KEY",
        envvar="ARIANE_SECRET_KEY",
        show_default=False,
        help="Secret key of the access key.",
        rich_help_panel=CONNECTION,
    ),
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help='Option of the Spark source "rocketmq", for example useTls=true; repeatable.',
        rich_help_panel="Spark options",
    ),
]

# Options that the command or its jobs set: other values would change which rows the tables contain.
RESERVED_OPTIONS = {
    **dict.fromkeys(("namesrv", "nameserver"), "use --namesrv"),
    "accesskey": "use --access-key or ARIANE_ACCESS_KEY",
    "secretkey": "use --secret-key or ARIANE_SECRET_KEY",
    **dict.fromkeys(("topic", "topics", "topicspattern", "includesystemtopics"), "each job reads its own topics"),
    **dict.fromkeys(("tags", "subexpression", "keys"), "jobs read all messages of their topics"),
    **dict.fromkeys(
        ("startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp"),
        "jobs read their topics from the start",
    ),
}


def client_settings(access_key: str, secret_key: str) -> ClientSettings | None:
    """Return client settings with this account; None without one.

    Raises:
        UsageError: only one of the two keys is set.
    """
    from ariane.client.settings import ClientSettings
    from ariane.protocol.signing import Credentials

    if not _has_account(access_key, secret_key):
        return None
    return ClientSettings(credentials=Credentials(access_key, secret_key))


def source_options(
    namesrv: str, access_key: str, secret_key: str, texts: Sequence[str] | None = None
) -> dict[str, str]:
    """Return the options of format("rocketmq") that all sources share. The source itself rejects unknown ones.

    Raises:
        UsageError: a text is not NAME=VALUE, repeats an option, or sets one that the jobs set themselves.
    """
    options = {"namesrv": namesrv}
    if _has_account(access_key, secret_key):
        options |= {"accessKey": access_key, "secretKey": secret_key}
    for text in texts or ():
        name, sign, value = text.partition("=")
        name = name.strip()
        if not sign or not name:
            raise UsageError("--option", name, "expected NAME=VALUE, for example useTls=true")
        if fix := RESERVED_OPTIONS.get(name.lower()):
            raise UsageError("--option", name, fix)
        # Spark's options are case-insensitive: the second spelling would silently win.
        if name.lower() in map(str.lower, options):
            raise UsageError("--option", name, "given twice; remove one")
        options[name] = value
    return options


def _has_account(access_key: str, secret_key: str) -> bool:
    # One key alone cannot sign a request.
    if bool(access_key) != bool(secret_key):
        missing = "--secret-key" if access_key else "--access-key"
        raise UsageError(missing, None, "missing; specify both --access-key and --secret-key, or neither")
    return bool(access_key)

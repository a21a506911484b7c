"""Options for access to the servers, shared by all commands that connect: the account that signs requests, and TLS.

    --access-key / ARIANE_ACCESS_KEY    --secret-key / ARIANE_SECRET_KEY        (variables keep keys out of process lists)
    --tls / ARIANE_TLS                  --tls-verify, --tls-ca-file, …          (tls_options.py)

A command has one parameter `access: AccessOptions`; `option_groups` turns it into these options. Its methods pass them on: to
clients, to administration and to Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ariane.cli.options import tls_options
from ariane.cli.options.shared_options import CONNECTION
from ariane.cli.options.tls_options import TlsOption
from ariane.errors import UsageError
from ariane.net.tls import Verify, camel_case

if TYPE_CHECKING:
    from ariane.client.instance.settings import ClientSettings


def _parse_verify(text: object) -> str:
    try:
        return tls_options.parse_verify(text)
    except ValueError as error:
        raise typer.BadParameter(f"{str(text)!r}: {error}.") from None


# Options that the command or its jobs set: other values would change which rows the tables contain.
RESERVED_OPTIONS = {
    **dict.fromkeys(("namesrv", "nameserver"), "use --namesrv"),
    "accesskey": "use --access-key or ARIANE_ACCESS_KEY",
    "secretkey": "use --secret-key or ARIANE_SECRET_KEY",
    **{
        camel_case(option.setting).lower(): f"use {option.flag} or {option.variable}"
        for option in tls_options.TLS_OPTIONS
    },
    **dict.fromkeys(
        ("topic", "topics", "topicspattern", "includesystemtopics", "topicswithbody"), "each job reads its own topics"
    ),
    **dict.fromkeys(("tags", "subexpression", "keys"), "jobs read all messages of their topics"),
    **dict.fromkeys(
        ("startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp"),
        "jobs read their topics from the start",
    ),
}


def _tls_option(option: TlsOption, **settings: Any) -> Any:
    return typer.Option(
        option.flag,
        metavar=option.metavar or None,
        envvar=option.variable,
        help=option.help,
        rich_help_panel=CONNECTION,
        show_default=False,
        **settings,
    )


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """Account and encryption, as a command line has them. Satisfies `net.tls.TlsOptions`.

    Raises:
        UsageError: only one of the two keys is set; TLS options contradict each other, or a file cannot be used.
    """

    access_key: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            envvar="ARIANE_ACCESS_KEY",
            help="Access key, for brokers with access control.",
            rich_help_panel=CONNECTION,
        ),
    ] = ""
    secret_key: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            envvar="ARIANE_SECRET_KEY",
            show_default=False,
            help="Secret key of the access key.",
            rich_help_panel=CONNECTION,
        ),
    ] = field(default="", repr=False)  # never part of a message or log line
    # The options below have no effect without it, and are then refused.
    use_tls: Annotated[bool, _tls_option(tls_options.USE_TLS)] = False
    # By default everything is checked: accepting less is a decision of the operator.
    tls_verify: Annotated[Verify, _tls_option(tls_options.TLS_VERIFY, parser=_parse_verify)] = "true"
    # Paths of PEM files on this machine, for Spark on each of its machines; empty: none.
    tls_ca_file: Annotated[str, _tls_option(tls_options.TLS_CA_FILE)] = ""
    # Only for servers that demand one.
    tls_cert_file: Annotated[str, _tls_option(tls_options.TLS_CERT_FILE)] = ""
    # Empty: the certificate's file contains the key, too.
    tls_key_file: Annotated[str, _tls_option(tls_options.TLS_KEY_FILE)] = ""
    # A file, because other users of the machine see the arguments of programs.
    tls_key_password_file: Annotated[str, _tls_option(tls_options.TLS_KEY_PASSWORD_FILE)] = ""

    def __post_init__(self) -> None:
        # One key alone cannot sign a request.
        if bool(self.access_key) != bool(self.secret_key):
            missing = "--secret-key" if self.access_key else "--access-key"
            raise UsageError(missing, None, "missing; specify both --access-key and --secret-key, or neither")
        tls_options.check_options(self, tls_options.kebab_case)

    def client_settings(self) -> ClientSettings | None:
        """Return settings for clients and for `Admin`; None if they are the defaults."""
        if self == NO_ACCESS:
            return None
        from ariane.client.instance.settings import access_settings
        from ariane.protocol.signing import Credentials

        return access_settings(Credentials(self.access_key, self.secret_key) if self.access_key else None, self)

    def spark_options(self) -> dict[str, str]:
        """Return the options of format("rocketmq") that differ from its defaults."""
        options = {"accessKey": self.access_key, "secretKey": self.secret_key} if self.access_key else {}
        if self.use_tls:
            options |= {"useTls": "true", "tlsVerify": self.tls_verify}
            files = (option.setting for option in tls_options.TLS_OPTIONS if option.metavar == "FILE")
            options |= {camel_case(setting): path for setting in files if (path := getattr(self, setting))}
        return options


NO_ACCESS = AccessOptions()  # requests are not signed, connections not encrypted


def source_options(namesrv: str, access: AccessOptions, texts: Sequence[str] | None = None) -> dict[str, str]:
    """Return the options of format("rocketmq") that all sources share. The source itself rejects unknown ones.

    Raises:
        UsageError: a text is not NAME=VALUE, repeats an option, or sets one that the jobs or other options set.
    """
    options = {"namesrv": namesrv, **access.spark_options()}
    for text in texts or ():
        name, sign, value = text.partition("=")
        name = name.strip()
        if not sign or not name:
            raise UsageError("--option", name, "expected NAME=VALUE, for example timeoutMs=30000")
        if fix := RESERVED_OPTIONS.get(name.lower()):
            raise UsageError("--option", name, fix)
        # Spark's options are case-insensitive: the second spelling would silently win.
        if name.lower() in map(str.lower, options):
            raise UsageError("--option", name, "given twice; remove one")
        options[name] = value
    return options

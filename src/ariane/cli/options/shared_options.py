"""Types of the options that several commands share. Invalid values are rejected while the command line is parsed.

    Usage: ariane up [OPTIONS]
    Error: Invalid value for '--namesrv-port': 70000: expected a port from 0 (any free port) to 65535.    exit status 2

Each parser takes the text of an option, or its default, and returns the value or raises `typer.BadParameter`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.errors import ProtocolError, UsageError
from ariane.model import host
from ariane.model.topic import group_name_fault, topic_name_fault

if TYPE_CHECKING:
    from ariane.net.listening.server_tls import ServerTlsOptions

# Sections of the help.
CONNECTION, FILTERS, OUTPUT = "Connection options", "Filter options", "Output options"

LOOPBACK = "127.0.0.1"
NAMESRV_DEFAULT = "127.0.0.1:9876"  # where `ariane up` listens
NAME_MAX = 255  # characters of a value that an error message shows in full

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # a single letter is a drive on Windows


def local_path(text: object) -> Path:
    """Return a local path with `~` expanded.

    URIs are rejected: `s3://bucket` would silently become a directory below the current one.
    """
    value = str(text)
    if not value.strip():
        raise typer.BadParameter("empty path: expected a local file or directory.")
    if "\0" in value:
        raise typer.BadParameter(f"{value!r} contains a NUL byte: expected a local file or directory.")
    if scheme := _URI.match(value):
        raise typer.BadParameter(f"{value!r} is a URI ({scheme[1]}): expected a local path.")
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise typer.BadParameter(f"{value!r}: {error}.") from None


def whole_number(minimum: int, maximum: int | None = None, kind: str = "a whole number") -> Callable[[object], int]:
    """Return a parser of whole numbers from `least` to `most`."""
    bounds = f"of at least {minimum:,}" if maximum is None else f"from {minimum} to {maximum}"

    def parse(text: object) -> int:
        value = str(text).strip()
        try:
            number = int(value)
        except ValueError:
            number = minimum - 1
        # `int` accepts the digits of other scripts, which are more likely a paste error.
        if not value.isascii() or number < minimum or (maximum is not None and number > maximum):
            raise typer.BadParameter(f"{_shortened(value)}: expected {kind} {bounds}.")
        return number

    return parse


def seconds(minimum: float) -> Callable[[object], float]:
    """Return a parser of finite durations in seconds."""

    def parse(text: object) -> float:
        value = str(text).strip()
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        # `float` accepts nan and inf.
        if not math.isfinite(number) or number < minimum:
            raise typer.BadParameter(f"{_shortened(value)}: expected a number of seconds of at least {minimum:g}.")
        return number

    return parse


def name_servers(text: object) -> str:
    """Return name server addresses (HOST:PORT) joined by ';'."""
    addresses = [part for address in str(text).split(";") if (part := address.strip())]
    if not addresses:
        raise typer.BadParameter("empty list: expected HOST:PORT, several separated by ';'.")
    for address in addresses:
        try:
            host.parse("" if "/" in address else address)  # reject URLs
        except ProtocolError:
            message = (
                f"{_shortened(address)}: expected HOST:PORT, several separated by ';', for example {NAMESRV_DEFAULT}."
            )
            raise typer.BadParameter(message) from None
    return ";".join(addresses)


def topic_name(text: object) -> str:
    """Return a valid topic name."""
    if fault := topic_name_fault(str(text)):
        raise typer.BadParameter(f"{fault}.")
    return str(text)


def group_name(text: object) -> str:
    """Return a valid name of a producer or consumer group."""
    if fault := group_name_fault(str(text)):
        raise typer.BadParameter(f"{fault}.")
    return str(text)


def non_blank(text: object) -> str:
    """Return a text that is not blank: a key, an id, a condition."""
    if not str(text).strip():
        raise typer.BadParameter("empty value: expected a text.")
    return str(text)


def check_no_options(context: typer.Context, program: str) -> None:
    """Raise UsageError if an option of the program that a group of commands runs precedes a subcommand, which would ignore it."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            place = f"place the options of {context.invoked_subcommand} after its name"
            raise UsageError(parameter.opts[0], None, f"is an option of {program} that is run; {place}")


def _shortened(value: str) -> str:
    """Return the value as an error message shows it."""
    return repr(value) if len(value) <= NAME_MAX else f"{value[:40]!r}… ({len(value):,} characters)"


port = whole_number(0, 65_535, "a port")

Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Start although other machines reach a port without access control or TLS."),
]
Compatible = Annotated[
    bool,
    typer.Option("--compatible", help="Listen on all addresses by default, as Java's servers do; implies --insecure."),
]
NameServers = Annotated[
    str,
    typer.Option(
        "-n",
        "--namesrv",
        parser=name_servers,
        metavar="HOST:PORT",
        envvar="NAMESRV_ADDR",
        help="Name server addresses, separated by ';'.",
        rich_help_panel=CONNECTION,
    ),
]
NamesrvAddr = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namesrvAddr",
        parser=name_servers,
        metavar="HOST:PORT",
        help="Name server addresses, separated by ';'; overrides namesrvAddr.",
    ),
]
Topic = Annotated[
    str | None,
    typer.Option(parser=topic_name, metavar="TOPIC", help="Only this topic.", rich_help_panel=FILTERS),
]
Once = Annotated[bool, typer.Option("--once", help="Process everything available, then exit.")]
Group = Annotated[
    str | None,
    typer.Option(parser=group_name, metavar="GROUP", help="Only this consumer group.", rich_help_panel=FILTERS),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.", rich_help_panel=OUTPUT)]


LogFile = Annotated[
    Path | None,
    typer.Option("--log", parser=local_path, metavar="FILE", help="Log file, instead of stderr; rotated at 10 MiB."),
]


# Set by `ariane up` for its processes.
UntilStdinCloses = Annotated[bool, typer.Option(hidden=True)]


DefinedKeys = Annotated[
    list[str] | None,
    typer.Option(
        "-D",
        metavar="KEY=VALUE",
        help="Key of the configuration file, for example -Dtls.server.mode=enforcing; repeatable.",
    ),
]


DefinedTlsKeys = Annotated[
    list[str] | None,
    typer.Option(
        "-D",
        metavar="KEY=VALUE",
        help="TLS of the HTTP port, for example -Dtls.server.certPath=FILE; repeatable.",
    ),
]


def http_tls_options(definitions: list[str] | None) -> ServerTlsOptions | None:
    """Return the TLS of an HTTP port from options -D; None without.

    Raises:
        UsageError: a key does not concern the TLS of a server.
        ConfigError: a value is invalid.
    """
    if not definitions:
        return None
    from ariane.settings.http_tls import http_tls

    return http_tls({key: text or "" for key, text in defined_keys(definitions).items()})


def defined_keys(definitions: list[str] | None) -> dict[str, str | None]:
    """Return keys and texts of the options -D.

    Raises:
        UsageError: an option has no `=`.
    """
    keys: dict[str, str | None] = {}
    for definition in definitions or []:
        key, equals, text = definition.partition("=")
        if not equals or not key.strip():
            raise UsageError("-D", definition, "expected KEY=VALUE")
        keys[key.strip()] = text
    return keys

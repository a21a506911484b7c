"""Command lines in the form of Java's tools: `-bVALUE`, `-b VALUE`, `--brokerAddr VALUE`, `--brokerAddr=VALUE`, clusters of flags.

Differences: an invalid line is answered with the reason and exit status 2, and long names contain no spaces. Reference:
admin-and-dashboard 1.1.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, NoReturn

from ariane.cli.mqadmin.command import AdminCommand, Option
from ariane.cli.options.tls_options import TLS_OPTIONS, TLS_VERIFY, USE_TLS, parse_flag, parse_verify
from ariane.errors import ArianeError, UsageError

NAMESRV_DEFAULT = "127.0.0.1:9876"  # where `ariane up` listens
WATCH_MIN_S = 0.1


class CommandParser(argparse.ArgumentParser):
    """A parser that raises UsageError instead of printing the whole usage."""

    one_of: tuple[str, ...] = ()

    def error(self, message: str) -> NoReturn:
        """Raise the error with a hint at the help."""
        raise UsageError(self.prog, None, f"{message}; see '{self.prog} --help'")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line, and check that exactly one of alternative options is present."""
        options = super().parse_args(args, namespace)
        present = [name for name in self.one_of if getattr(options, _dest(name)) is not None]
        if self.one_of and len(present) != 1:
            names = " or ".join(f"--{name}" for name in self.one_of)
            self.error(f"expected {names}" + (", not both" if len(present) > 1 else ""))
        return options


def create_parser(command: AdminCommand, summary: str, prog: str) -> CommandParser:
    parser = CommandParser(
        prog=f"{prog} {command.name}", description=summary, add_help=False, allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=80),
    )  # fmt: skip
    parser.one_of = command.one_of
    specific = parser.add_argument_group("Options")
    for option in command.options:
        _add(specific, option)
    common = parser.add_argument_group("Common options")
    common.add_argument("-h", "--help", action="help", help="Print this help and exit.")
    common.add_argument(
        "-n", "--namesrvAddr", metavar="ADDRS", default=os.environ.get("NAMESRV_ADDR") or NAMESRV_DEFAULT,
        help=f"Name servers, HOST:PORT separated by ';'. [$NAMESRV_ADDR, or {NAMESRV_DEFAULT}]",
    )  # fmt: skip
    common.add_argument("--json", action="store_true", help="Print JSON, one document per line.")
    common.add_argument(
        "--watch", metavar="SECONDS", type=_converter(_watch_seconds), help="Run again every SECONDS until interrupted."
    )
    if command.is_change:
        common.add_argument("--dry-run", action="store_true", help="Print the changes without executing them.")
    names = {option.long for option in command.options}
    for long, variable in (("accessKey", "ARIANE_ACCESS_KEY"), ("secretKey", "ARIANE_SECRET_KEY")):
        # In commands on accounts these names are those of the account, as in Java's tools: the variables sign.
        if long not in names:
            text = f"{long.removesuffix('Key').capitalize()} key. [${variable}, or conf/tools.yml]"
            common.add_argument(f"--{long}", dest=f"sign_{long}", metavar="KEY", help=text)
    _add_tls(common)
    parser.set_defaults(sign_accessKey=None, sign_secretKey=None)
    return parser


def _add_tls(group: Any) -> None:
    for option in TLS_OPTIONS:
        text, value = f"{option.help} [${option.variable}]", os.environ.get(option.variable, "")
        if option is USE_TLS:
            default = parse_flag(option.variable, value)
            group.add_argument(option.java_flag, dest=option.setting, action="store_true", default=default, help=text)
            continue
        is_mode = option is TLS_VERIFY
        group.add_argument(
            option.java_flag, dest=option.setting, metavar=option.metavar, type=_converter(parse_verify if is_mode else str),
            default=value or ("true" if is_mode else ""), help=text,
        )  # fmt: skip


def _add(group: Any, option: Option) -> None:
    names = [f"-{option.short}", f"--{option.long}"] if option.short else [f"--{option.long}"]
    if option.is_flag:
        group.add_argument(*names, dest=_dest(option.long), action="store_true", help=option.help)
        return
    shown = "" if option.default is None else f" [{str(option.default).replace('%', '%%')}]"
    group.add_argument(
        *names, dest=_dest(option.long), metavar=option.metavar or option.long.upper(),
        type=_converter(option.parse), default=option.default, required=option.is_required,
        help=option.help + (" (required)" if option.is_required else shown),
    )  # fmt: skip


def _converter(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser whose errors name the reason."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, ArianeError) as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None

    return convert


def _watch_seconds(text: str) -> float:
    seconds = float(text)
    if not WATCH_MIN_S <= seconds < float("inf"):
        raise ValueError(f"expected at least {WATCH_MIN_S:g} seconds")
    return seconds


def _dest(name: str) -> str:
    return name.replace("-", "_")

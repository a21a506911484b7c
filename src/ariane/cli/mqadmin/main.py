"""Runs `mqadmin COMMAND [options]` and turns errors into a message and an exit status.

exit status   0 success   1 failure, or a broker did not respond   2 invalid command line   130 interrupted   141 broken pipe

Java's tool ends with 0 after most failures. `ariane admin` runs the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from ariane.cli.mqadmin.command import AdminCommand, Options, Output
from ariane.cli.mqadmin.command_registry import REGISTRY, find_name, load
from ariane.cli.mqadmin.option_parser import create_parser
from ariane.cli.options.tls_options import NO_TLS, TLS_OPTIONS, TlsValues, check_options, java_style
from ariane.cli.output.repetition import clear_screen, rounds
from ariane.errors import ArianeError, UsageError

if TYPE_CHECKING:
    from ariane.client.instance.settings import ClientSettings
    from ariane.cluster.admin import Admin

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
HINT = "'help <command>' lists the options of a command; every command has --json."


def run() -> NoReturn:
    """Run the command line of this process; the entry point `mqadmin`."""
    with contextlib.suppress(ValueError, AttributeError):  # not in the main thread, or not a Unix system
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `mqadmin topicList | head` ends quietly
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str], prog: str = "mqadmin") -> int:
    """Run a command line and return its exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_command_list(prog), end="")
        return 0
    try:
        name, *others = arguments
        if name == "help":
            name, others = (others[0] if others else "help"), ["--help"]
            if name == "help":
                print(_command_list(prog), end="")
                return 0
        if name == "completion":
            from ariane.cli.mqadmin.completion import completion_script

            print(completion_script(others, prog), end="")
            return 0
        command = _find(name)
        parser = create_parser(command, REGISTRY[command.name].summary, prog)
        options = parser.parse_args(others)
        return _run(command, options)
    except UsageError as error:
        return _fail(str(error), MISUSED)
    except ArianeError as error:
        return _fail(str(error), FAILED)
    except OSError as error:
        # Files and directories are the user's: the message names the file, a traceback adds nothing.
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)


def _find(name: str) -> AdminCommand:
    """Return the command with a name.

    Raises:
        UsageError: there is none; the message suggests similar names.
    """
    registered = find_name(name)
    if registered is None:
        import difflib

        lower = {known.lower(): known for known in REGISTRY}
        similar = [lower[match] for match in difflib.get_close_matches(name.lower(), lower, 3)]
        hint = f"did you mean {' or '.join(similar)}?" if similar else "run 'mqadmin help' for the list"
        raise UsageError("command", name, f"unknown command; {hint}")
    return load(registered)


def _run(command: AdminCommand, options: Options) -> int:
    """Run a command once, or every `--watch` seconds, and return the exit status."""
    status = 0
    for number in rounds(options.watch):
        if number:
            clear_screen()
            if not options.json:
                print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} ---")
        status = asyncio.run(_run_once(command, options))
    return status


async def _run_once(command: AdminCommand, options: Options) -> int:
    from ariane.cluster.admin import Admin
    from ariane.cluster.connection import each_once

    is_dry_run = command.is_change and options.dry_run
    is_complete = True
    async with Admin(options.namesrvAddr, client=_client_settings(options), is_dry_run=is_dry_run) as admin:
        try:
            async for output in command.run(admin, options):
                if output.is_plan or not is_dry_run:
                    _print(output, options)
                for note in output.notes:
                    print(note, file=sys.stderr)
                for missing in each_once(output.unavailable):
                    is_complete = False
                    print(missing, file=sys.stderr)
        finally:
            for note in admin.notes:
                print(note, file=sys.stderr)
        if is_dry_run:
            _print_changes(admin, options)
    return 0 if is_complete else FAILED


def _print(output: Output, options: Options) -> None:
    if options.json:
        from ariane.cli.output.json_output import to_json

        print(to_json(output.data), flush=True)
    else:
        # Names, keys and bodies come from clients: what the terminal cannot show must not end the command.
        sys.stdout.write(output.text.encode(errors="backslashreplace").decode(errors="replace"))
        sys.stdout.flush()


def _print_changes(admin: Admin, options: Options) -> None:
    if options.json:
        from ariane.cli.output.json_output import to_json

        print(to_json([{"addr": change.addr, "change": change.summary} for change in admin.changes]))
        return
    for change in admin.changes:
        print(f"would {change.summary} on {change.addr}")
    if not admin.changes:
        print("would change nothing")


def _client_settings(options: Options) -> ClientSettings | None:
    """Return the account of the options, or of `$ROCKETMQ_HOME/conf/tools.yml` as Java's tools read it, and TLS; None: neither.

    Raises:
        UsageError: options contradict each other, or a file cannot be used.
    """
    from ariane.cli.mqadmin.tools_account import read_account

    account = read_account(options.sign_accessKey, options.sign_secretKey, os.environ)
    tls = TlsValues(*(getattr(options, option.setting) for option in TLS_OPTIONS))
    check_options(tls, java_style)
    if account is None and tls == NO_TLS:
        return None
    from ariane.client.instance.settings import access_settings  # takes a tenth of a second

    return access_settings(account, tls)


def _command_list(prog: str) -> str:
    rows = [f"   {name:<24} {entry.summary}" for name, entry in REGISTRY.items()]
    return "\n".join([f"Usage: {prog} <command> [options]", "", "Commands:", *rows, "", HINT, ""])


def _fail(message: str, status: int) -> int:
    sys.stdout.flush()
    print(f"Error: {message}", file=sys.stderr)
    return status

"""Values that declare a command of `mqadmin`, and what it prints.

TOPIC = Option("t", "topic", "Topic name.", is_required=True)
COMMANDS = CommandList()

@COMMANDS.add("topicStatus", TOPIC)
async def topic_status(admin: Admin, options: Options) -> AsyncIterator[Output]:
    ...
    yield Output(lines, data)
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from ariane.cluster.admin import Admin
    from ariane.cluster.connection import BrokerUnavailable

Options = argparse.Namespace
"""Values of the options by their long names, with `-` replaced by `_`; None where an option without default is absent."""


class Option(NamedTuple):
    """An option of a command.

    Attributes:
        short: Letter, without a dash.
        long: Long name, without dashes; Java's, except where Java's contains a space and never worked.
        help: What it does, as a sentence.
        parse: Returns the value of a text, or raises ValueError or ArianeError with the reason.
        default: Value, or text for `parse`, of an absent option.
        metavar: How the help names the value; empty: the long name.
        is_required: Whether the command line must contain it.
        is_flag: Whether it takes no value; it is then True or False.
    """

    short: str
    long: str
    help: str
    parse: Callable[[str], Any] = str
    default: Any = None
    metavar: str = ""
    is_required: bool = False
    is_flag: bool = False


class Output(NamedTuple):
    """One piece of output: most commands have one, those that run on have one per round or message.

    Attributes:
        text: What Java's command prints to standard output, with its line ends.
        data: The same as a value for `--json`: a dict, a list, or Structs and NamedTuples. Unknown values are None.
        unavailable: Brokers that did not respond; they are reported on stderr, and the exit status is 1.
        notes: Remarks for stderr, for example that a limit was reached; they do not change the exit status.
        is_plan: Whether it describes what a change would do, and is therefore printed in a dry run, too.
    """

    text: str
    data: Any
    unavailable: tuple[BrokerUnavailable, ...] = ()
    notes: tuple[str, ...] = ()
    is_plan: bool = False


Run = Callable[["Admin", Options], AsyncIterator[Output]]


class AdminCommand(msgspec.Struct, frozen=True):
    """A command.

    Attributes:
        name: Java's name.
        run: Yields its output.
        options: Its options, without those that all commands have.
        aliases: Other names.
        is_change: Whether it changes a server, and therefore has `--dry-run`.
    """

    name: str
    run: Run
    options: tuple[Option, ...] = ()
    aliases: tuple[str, ...] = ()
    is_change: bool = False

    @property
    def one_of(self) -> tuple[str, ...]:
        """Long names of alternative options: exactly one is required, `-b` or `-c`."""
        target = (BROKER.long, CLUSTER.long)
        return target if {*target} <= {option.long for option in self.options} else ()


class CommandList(list[AdminCommand]):
    """The commands of a module."""

    def add(
        self,
        name: str,
        *options: Option,
        aliases: tuple[str, ...] = (),
        is_change: bool = False,
    ) -> Callable[[Run], Run]:
        """Return a decorator that adds a command, which the function runs. Arguments as of `AdminCommand`."""

        def decorate(run: Run) -> Run:
            self.append(AdminCommand(name, run, options, aliases, is_change))
            return run

        return decorate


def lines(texts: Iterable[str]) -> str:
    """Return texts as lines, each with its line end."""
    return "".join(f"{text}\n" for text in texts)


# Options that many commands share.
BROKER = Option("b", "brokerAddr", "Broker, HOST:PORT or name.", metavar="ADDR")
CLUSTER = Option("c", "clusterName", "All masters of this cluster.", metavar="NAME")
TOPIC = Option("t", "topic", "Topic name.", metavar="NAME", is_required=True)
GROUP = Option("g", "groupName", "Consumer group.", metavar="NAME", is_required=True)

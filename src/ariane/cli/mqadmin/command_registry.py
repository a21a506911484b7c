"""Names and summaries of all commands, and the module of each, without importing it.

A summary is one imperative sentence; the list of commands and the help show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import NamedTuple

from ariane.cli.mqadmin.command import AdminCommand


class RegisteredCommand(NamedTuple):
    """Where a command is, and what it does."""

    module: str
    summary: str


_MODULES: dict[str, dict[str, str]] = {
    "topic_commands": {
        "updateTopic": "Create a topic or change it.",
        "topicList": "List all topics.",
    },
    "message_query_commands": {
        "queryMsgById": "Print messages with these ids, or send them again.",
        "queryMsgByKey": "List the messages of a topic with a business key.",
        "queryMsgByUniqueKey": "Print the message of a topic with a unique key.",
        "queryMsgByOffset": "Print the message at an offset of a queue.",
        "queryMsgTraceById": "Print the trace of a message.",
    },
}

REGISTRY: dict[str, RegisteredCommand] = {
    name: RegisteredCommand(module, summary) for module, table in _MODULES.items() for name, summary in table.items()
}

# Other names of commands.
ALIASES = {"deleteAccessConfig": "deleteAclConfig", "getAccessConfigSubCommand": "getAclConfig"}


def find_name(name: str) -> str | None:
    """Return the registered name of a command, compared without regard to case as Java does; None if there is none."""
    names = {known.lower(): known for known in REGISTRY}
    names |= {alias.lower(): target for alias, target in ALIASES.items() if target in REGISTRY}
    return names.get(name.lower())


def load(name: str) -> AdminCommand:
    """Import the module of a registered command and return the command."""
    return next(command for command in _commands_of(REGISTRY[name].module) if command.name == name)


def load_all() -> Iterator[AdminCommand]:
    """Import all modules and yield all commands."""
    for module in _MODULES:
        yield from _commands_of(module)


def _commands_of(module: str) -> tuple[AdminCommand, ...]:
    commands: tuple[AdminCommand, ...] = import_module(f"ariane.cli.mqadmin.{module}").COMMANDS
    return commands

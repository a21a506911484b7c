"""Selects queues of a topic by the names of `--queue`: `3` for queue 3 of every broker, `broker-a:3` for one queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import typer

from ariane.errors import UsageError
from ariane.model.message import MessageQueue


class QueueName(NamedTuple):
    """A queue id, of one broker or (None) of every broker."""

    broker: str | None
    queue_id: int

    def __str__(self) -> str:
        return str(self.queue_id) if self.broker is None else f"{self.broker}:{self.queue_id}"


def parse_queue(text: object) -> QueueName:
    """Return the queue of `3` or `broker-a:3`."""
    broker, colon, number = str(text).rpartition(":")
    if not (number.isascii() and number.isdigit() and len(number) <= 5) or (colon and not broker):
        raise typer.BadParameter(f"{str(text)!r}: expected a queue id (3), or broker and id (broker-a:3).")
    return QueueName(broker or None, int(number))


def select_queues(queues: Sequence[MessageQueue], names: Sequence[QueueName]) -> list[MessageQueue]:
    """Return the named ones of `queues`; all of them without names.

    Raises:
        UsageError: a name matches none of the queues.
    """
    if not names:
        return list(queues)
    for name in names:
        if not any(_matches(queue, name) for queue in queues):
            existing = ", ".join(f"{queue.broker}:{queue.queue_id}" for queue in queues)
            raise UsageError("--queue", str(name), f"no such queue; the topic has {existing or 'none'}")
    return [queue for queue in queues if any(_matches(queue, name) for name in names)]


def _matches(queue: MessageQueue, name: QueueName) -> bool:
    return queue.queue_id == name.queue_id and name.broker in (None, queue.broker)

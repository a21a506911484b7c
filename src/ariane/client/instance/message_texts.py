"""How log lines name messages: by id, keys, topic, queue, offset and attempt."""

from __future__ import annotations

from collections.abc import Sequence

from ariane.model.message import ReceivedMessage

KEYS_MAX = 100  # characters: a message may carry 32 KiB of keys


def identity(message: ReceivedMessage) -> str:
    queue, keys = message.queue, " ".join(message.keys)
    keys = keys if len(keys) <= KEYS_MAX else keys[:KEYS_MAX] + "…"
    return (
        f"{message.message_id} (keys {keys or '-'}, offset {message.queue_offset} of {queue.topic} at {queue.broker}:"
        f"{queue.queue_id}, attempt {message.reconsume_times + 1})"
    )


def identities(messages: Sequence[ReceivedMessage]) -> str:
    """Return the text for the messages of one call."""
    text = f"message {identity(messages[0])}"
    return text if len(messages) == 1 else f"{text} and {len(messages) - 1} more, to offset {messages[-1].queue_offset}"

"""Texts of messages, queues and their results as Java's tools print them, and the files of bodies. Reference: 1.6, 1.10."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ariane.cli.mqadmin.value_text import boolean, message_queue, time_ms
from ariane.cluster.messages.message_tracking import DirectConsumption, MessageTrack
from ariane.model import host
from ariane.model.message import KEYS, TAGS, TRAN_MSG, UNIQ_KEY, ReceivedMessage
from ariane.protocol.records.received_messages import expand_body
from ariane.protocol.records.record import Record

if TYPE_CHECKING:
    from ariane.client.instance.send_types import SendResult

BODY_DIRECTORY = Path("/tmp/rocketmq/msgbodys")  # noqa: S108 - where Java's tools write bodies and scripts read them
NULL = "null"


def send_result(result: SendResult) -> str:
    return (
        f"SendResult [sendStatus={result.status.name}, msgId={result.message_id},"
        f" offsetMsgId={result.offset_message_id}, messageQueue={message_queue(result.queue)},"
        f" queueOffset={result.queue_offset}]"
    )


def direct_consumption(result: DirectConsumption) -> str:
    return (
        f"ConsumeMessageDirectlyResult [order={boolean(result.order)}, autoCommit={boolean(result.auto_commit)},"
        f" consumeResult={result.consume_result or NULL}, remark={NULL if result.remark is None else result.remark},"
        f" spentTimeMills={result.spent_time_mills}]"
    )


def track(value: MessageTrack) -> str:
    """Return the state of a message in a group."""
    return f"MessageTrack [consumerGroup={value.group}, trackType={value.state.name}, exceptionDesc={value.reason or NULL}]"


def message_rows(message: ReceivedMessage, body_file: Path, *, with_offset_id: bool) -> list[str]:
    """Return one line for each attribute of a message."""
    rows = [
        ("OffsetID:", message.offset_message_id),
        ("Topic:", message.queue.topic),
        ("Tags:", f"[{message.properties.get(TAGS, NULL)}]"),
        ("Keys:", f"[{message.properties.get(KEYS, NULL)}]"),
        ("Queue ID:", message.queue.queue_id),
        ("Queue Offset:", message.queue_offset),
        ("CommitLog Offset:", message.commit_log_offset),
        ("Reconsume Times:", message.reconsume_times),
        ("Born Timestamp:", time_ms(message.born_ms)),
        ("Store Timestamp:", time_ms(message.store_ms)),
        ("Born Host:", message.born_host),
        ("Store Host:", message.store_host),
        ("System Flag:", message.sys_flag),
        ("Properties:", map_text(message.properties)),
        ("Message Body Path:", body_file),
    ]
    return [f"{label:<20} {value}" for label, value in (rows if with_offset_id else rows[1:])]


def map_text(table: Mapping[str, str]) -> str:
    """Return a map as `{k=v, …}`, in the order in which it is stored."""
    return "{" + ", ".join(f"{name}={value}" for name, value in table.items()) + "}"


def record_text(stored: Record, broker: str, properties: Mapping[str, str], offset_id: str) -> str:
    """Return a record as Java prints a received message; the body as a list of signed bytes."""
    body = expand_body(stored.body, stored.sys_flag)[0]
    is_prepared = properties.get(TRAN_MSG, "").lower() == "true"
    transaction_id = properties.get(UNIQ_KEY, NULL) if is_prepared else NULL
    signed = ", ".join(str(byte - 256 if byte > 127 else byte) for byte in body)
    return (
        f"MessageExt [brokerName={broker}, queueId={stored.queue_id}, storeSize={stored.size},"
        f" queueOffset={stored.queue_offset}, sysFlag={stored.sys_flag}, bornTimestamp={stored.born_ms},"
        f" bornHost=/{host.text(stored.born_host)}, storeTimestamp={stored.store_ms},"
        f" storeHost=/{host.text(stored.store_host)}, msgId={offset_id}, commitLogOffset={stored.offset},"
        f" bodyCRC={stored.body_crc}, reconsumeTimes={stored.reconsume_times},"
        f" preparedTransactionOffset={stored.prepared_offset},"
        f" toString()=Message{{topic='{stored.topic}', flag={stored.flag}, properties={map_text(properties)},"
        f" body=[{signed}], transactionId='{transaction_id}'}}]"
    )


def write_body(message: ReceivedMessage, number: int = 0, directory: Path = BODY_DIRECTORY) -> Path:
    """Write the body of a message to the file in which Java's tools write it, and return its path.

    Its id names the file, without characters that a path gives a meaning; `number` counts further messages with the id, from 1.

    Raises:
        OSError: the directory or file belongs to another user.
    """
    directory.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", message.message_id)[:200] or "_"
    path = directory / (f"{name}_{number}" if number else name)
    # The directory is shared: a link of another user must not redirect the write.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(message.body)
    return path

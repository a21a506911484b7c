"""Runs of plain sends for the crash tests: encoded for the end of a store's log, as a broker does for each read."""

from __future__ import annotations

from ariane.kernels.sends.send_encoder import PythonSendEncoder
from ariane.kernels.sends.send_turn import SendSettings
from ariane.model import host
from ariane.model.topic import AUTO_CREATE_TOPIC
from ariane.protocol import command
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.messaging import SendMessage
from ariane.store.message_store import MessageStore

HOST = host.pack("127.0.0.1", 10911)
ENCODER = PythonSendEncoder(
    SendSettings(
        store_host=HOST, cluster="C", region="R", trace_on=True, header_max=4096, body_max=4096, is_indexed=True,
        exceptional=frozenset(),
    )
)  # fmt: skip


def put_run(store: MessageStore, topic: str, sends: list[tuple[int, bytes]]) -> dict[int, bytes] | None:
    """Put messages (queue id, body) as one run; return their bodies by log offset, None if they do not fit into the log file."""
    frames = b"".join(_frame(topic, queue_id, body) for queue_id, body in sends)
    log_end = store.log_end()
    assert log_end is not None
    run = ENCODER.encode(frames, 0, HOST, log_end, store.next_offset)
    if run.sends < len(sends):
        return None
    store.put_run(run, log_end.store_ms)
    offsets, offset = [], 0
    while offset < len(run.records):
        offsets.append(log_end.offset + offset)
        offset += int.from_bytes(run.records[offset : offset + 4], "big")
    return dict(zip(offsets, [body for _, body in sends], strict=True))


def _frame(topic: str, queue_id: int, body: bytes) -> bytes:
    header = SendMessage("p", topic, AUTO_CREATE_TOPIC, 4, queue_id, 0, 1, 0, "TAGS\x01a", 0)
    fields = encode_header(header)
    return b"".join(command.encode(RequestCode.SEND_MESSAGE_V2, opaque=1, flag=0, fields=fields, body=body))

"""Encodes drafts as records, and refuses those that the format cannot hold. [CommitLog.MessageExtEncoder]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ariane.errors import MessageRefused
from ariane.model.hashes import java_hash
from ariane.model.host import PACKED_V4
from ariane.protocol.records import properties as properties_text
from ariane.protocol.records.record import encode, encode_v4
from ariane.store.log.record_scanner import compute_delivery_ms
from ariane.store.types import RecordDraft


class EncodedDraft(NamedTuple):
    """A draft with the number and the texts of its record in bytes."""

    draft: RecordDraft
    topic: bytes
    properties: bytes
    queue_offset: int


def encode_properties(draft: RecordDraft, body_max: int) -> bytes:
    """Return the encoded properties of a draft.

    Raises:
        MessageRefused: properties or body are too long. The topic was checked when its queue was created.
    """
    properties = draft.properties.encode()
    if len(properties) > properties_text.SIZE_MAX:
        raise MessageRefused(
            f"Invalid properties: {len(properties)} bytes, expected at most {properties_text.SIZE_MAX}"
        )
    if len(draft.body) > body_max:
        raise MessageRefused(f"Invalid body: {len(draft.body)} bytes, expected at most {body_max} (maxMessageSize)")
    return properties


def delay_tags_code(draft: RecordDraft, store_ms: int, delays_ms: Sequence[int]) -> int:
    """Return the tags code of an entry in a delay topic: the draft's, or the end of its delay level."""
    if draft.tags_code is not None:
        return draft.tags_code
    delivery_ms = compute_delivery_ms(draft.properties, store_ms, delays_ms)
    return java_hash(draft.tags) if delivery_ms is None else delivery_ms


class RecordEncoder:
    """Encodes drafts as records of the commit log.

    Args:
        store_host: Packed address of the broker, part of every record.
    """

    def __init__(self, store_host: bytes) -> None:
        self._store_host = store_host
        self._is_v4 = len(store_host) == PACKED_V4

    def encode(
        self, draft: RecordDraft, topic: bytes, properties: bytes, queue_offset: int, offset: int, store_ms: int
    ) -> bytes:
        """Return the record as it is stored at `offset` of the log."""
        born_host = draft.born_host
        if self._is_v4 and len(born_host) == PACKED_V4:
            return encode_v4(
                topic, draft.body, properties, draft.queue_id, queue_offset, offset, draft.born_ms, born_host, store_ms,
                self._store_host, draft.flag, draft.sys_flag, draft.reconsume_times, draft.prepared_offset,
            )  # fmt: skip
        return encode(
            topic,
            draft.body,
            properties,
            queue_id=draft.queue_id,
            queue_offset=queue_offset,
            offset=offset,
            born_ms=draft.born_ms,
            born_host=born_host,
            store_ms=store_ms,
            store_host=self._store_host,
            flag=draft.flag,
            sys_flag=draft.sys_flag,
            reconsume_times=draft.reconsume_times,
            prepared_offset=draft.prepared_offset,
        )

    def encode_batch(self, parts: Sequence[EncodedDraft], offset: int, store_ms: int) -> list[bytes]:
        """Return the records of a batch, stored one after another from `offset` on."""
        records = []
        for draft, topic, properties, queue_offset in parts:
            data = self.encode(draft, topic, properties, queue_offset, offset, store_ms)
            records.append(data)
            offset += len(data)
        return records

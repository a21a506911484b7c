"""Looks up the record with an offset id."""

from __future__ import annotations

from ariane.cluster.admin import Admin
from ariane.cluster.messages.message_query import is_offset_id
from ariane.console.live.guarded_pool import NotRegistered
from ariane.errors import ProtocolError, ReplyError
from ariane.model.message import ReceivedMessage


async def view_record(admin: Admin, message_id: str) -> ReceivedMessage | None:
    """Return the record with an offset id; None if the text is not the id of a record at a registered broker.

    Raises:
        ConnectionLost, RequestTimeout: the broker did not respond.
    """
    if not is_offset_id(message_id):
        return None
    try:
        return await admin.view_by_offset_id(message_id)
    except (NotRegistered, ReplyError, ProtocolError):
        return None

"""Request and reply: both kinds of message. `pending_replies` has the requests that wait. [MessageUtil]

request  a message with CORRELATION_ID, REPLY_TO_CLIENT (client id of the requester), TTL (ms)
reply    to <cluster>_REPLY_TOPIC, with the same three, MSG_TYPE=reply; its broker pushes it to the requester (326)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from ariane.client.instance.send_types import PreparedMessage
from ariane.client.instance.settings import ProducerSettings
from ariane.client.sending import send_codec
from ariane.errors import MessageRefused
from ariane.model import message as names
from ariane.model.message import Message, ReceivedMessage
from ariane.model.topic import reply_topic
from ariane.protocol.codes import RequestCode

log = logging.getLogger("ariane.client")

REPLY = "reply"  # value of MSG_TYPE


def prepare_request(prepared: PreparedMessage, correlation_id: str, client_id: str, timeout_ms: int) -> PreparedMessage:
    """Return a prepared message as a request of `client_id`."""
    added = {
        names.CORRELATION_ID: correlation_id,
        names.REPLY_TO_CLIENT: client_id,
        names.TTL: str(timeout_ms),
    }
    return send_codec.with_properties(prepared, added)


def build_reply(
    request: ReceivedMessage, body: bytes, *, tags: str, keys: Sequence[str], properties: Mapping[str, str]
) -> Message:
    """Return a message for the topic of replies.

    Raises:
        MessageRefused: the message to reply to is not a request.
    """
    required = (names.CLUSTER, names.CORRELATION_ID, names.REPLY_TO_CLIENT)
    missing = [name for name in required if not request.properties.get(name)]
    if missing:
        raise MessageRefused(f"message {request.message_id} is not a request: it lacks {', '.join(missing)}")
    topic = reply_topic(request.properties[names.CLUSTER])
    return Message(topic=topic, body=body, tags=tags, keys=keys, properties=properties)


def prepare_reply(
    request: ReceivedMessage, response: Message, message_id: str, settings: ProducerSettings
) -> PreparedMessage:
    """Return a message of `build_reply`, prepared as the reply to `request`."""
    prepared = send_codec.prepare(response, message_id, settings)
    added = {
        names.MSG_TYPE: REPLY,
        names.CORRELATION_ID: request.properties[names.CORRELATION_ID],
        names.REPLY_TO_CLIENT: request.properties[names.REPLY_TO_CLIENT],
    }
    if ttl := request.properties.get(names.TTL):
        added[names.TTL] = ttl
    prepared = send_codec.with_properties(prepared, added)
    return msgspec.structs.replace(prepared, code=RequestCode.SEND_REPLY_MESSAGE_V2)

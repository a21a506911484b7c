"""Header fields of send requests: encoded once per queue, except for what differs from message to message.

    {"a":"group","b":"topic", … ,"e":"3","f":"0","g":" born ","h":"0","i": properties ,"j":"0","k":"false","m":"false"}
    start, one per queue                               ^              ^                end

A plain message is sent by code 310, without flags and not as a copy. The bytes are those of `send_codec.request_fields` as JSON.
"""

from __future__ import annotations

from json.encoder import encode_basestring

import msgspec

from ariane.client.instance.send_types import PreparedMessage
from ariane.client.instance.settings import ProducerSettings
from ariane.client.sending import send_codec
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Fields

QUEUES_MAX = 65_536  # whose starts are remembered


class SendHeaders:
    """Header fields of the sends of one producer group."""

    def __init__(self, group: str, settings: ProducerSettings) -> None:
        self._group = group
        self._settings = settings
        self._starts: dict[tuple[str, int], str] = {}

    def fields(self, message: PreparedMessage, queue_id: int, born_ms: int) -> Fields:
        """Return the extFields of a send, as they leave."""
        if (
            message.code is not RequestCode.SEND_MESSAGE_V2
            or message.sys_flag
            or message.flag
            or message.redelivery is not None
        ):
            return send_codec.request_fields(message, self._group, queue_id, born_ms, self._settings)
        start = self._starts.get((message.topic, queue_id)) or self._make_start(message.topic, queue_id)
        properties = encode_basestring(message.properties)
        return msgspec.Raw(f'{start}{born_ms}","h":"0","i":{properties},"j":"0","k":"false","m":"false"}}'.encode())

    def _make_start(self, topic: str, queue_id: int) -> str:
        """Encode what precedes the time of the send."""
        group, name, template = map(encode_basestring, (self._group, topic, self._settings.create_topic_key))
        queue_nums = self._settings.default_topic_queue_nums
        start = f'{{"a":{group},"b":{name},"c":{template},"d":"{queue_nums}","e":"{queue_id}","f":"0","g":"'
        if len(self._starts) >= QUEUES_MAX:
            self._starts.clear()
        self._starts[topic, queue_id] = start
        return start

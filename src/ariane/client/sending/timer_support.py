"""Which brokers deliver a message at the time that its `delay` or `deliver_at` names.

Apache 4.x stores these as properties that it does not know, and delivers the message immediately. So a broker is asked before the
first such message on a connection: Ariane and 5.3.2 support RECALL_MESSAGE (370), and earlier 5.x have the version of 5.x. Clients
ask by `TimerSupport`, tasks of the Spark sink by `recall_without_effect` and `check_response`.
"""

from __future__ import annotations

from ariane.errors import MessageRefused
from ariane.net.connection import Connection
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.messaging import RecallMessage

VERSION_5 = 413  # ordinal of V5_0_0 in Java's MQVersion
NO_TIMER = "does-the-broker-support-timers"  # a handle that no message has


class TimerSupport:
    """Asks brokers once per connection, as another version may run after a restart."""

    def __init__(self, group: str) -> None:
        self._group = group  # producer group in the requests
        self._confirmed: dict[str, int] = {}  # id of the connection on which the broker at an address confirmed it

    async def require(self, connection: Connection, addr: str, topic: str, timeout_ms: float) -> None:
        """Raise MessageRefused if the broker at `addr` would deliver the message immediately.

        Raises:
            MessageRefused: the broker does not support delivery times.
            ConnectionLost: the connection was closed.
            RequestTimeout: the broker did not respond.
        """
        if self._confirmed.get(addr) == connection.peer.id:
            return
        header = encode_header(recall_without_effect(topic, self._group))
        response = await connection.request_nowait(RequestCode.RECALL_MESSAGE, header, timeout_ms=timeout_ms)
        check_response(response, addr, "ProducerSettings(check_timers=False)")
        self._confirmed[addr] = connection.peer.id


def recall_without_effect(topic: str, group: str) -> RecallMessage:
    """Return the header of a RECALL_MESSAGE request that names no message."""
    return RecallMessage(NO_TIMER, topic, group)


def check_response(response: Command, addr: str, setting: str) -> None:
    """Raise MessageRefused if the broker that responded does not support delivery times; `setting` omits the check."""
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and response.version < VERSION_5:
        raise MessageRefused(
            f"the message has a delivery time, and the broker at {addr} would deliver it immediately (RocketMQ before 5.0): "
            f"give it a delay_level, or set {setting} if the broker is one of Alibaba Cloud"
        )

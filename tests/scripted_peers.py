"""A name server and brokers that answer from a script, without sockets: one master with a slave, and one other master."""

from __future__ import annotations

from typing import Any

import msgspec

from ariane.errors import ConnectionLost, ReplyError
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.pools.requester import ServerRequest
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.messaging import OffsetResponse
from ariane.protocol.requests.routing import BrokerData, ClusterInfo, QueueData, TopicRoute

NAMES, MASTER, SLAVE, OTHER = "ns:1", "a:1", "a:2", "b:1"
BROKERS = {
    "broker-a": BrokerData({0: MASTER, 1: SLAVE}, "broker-a", "C"),
    "broker-b": BrokerData({0: OTHER}, "broker-b", "C"),
}
ROUTE = TopicRoute(
    tuple(BROKERS.values()), {}, None, (QueueData("broker-a", 6, 1, 0, 1), QueueData("broker-b", 6, 1, 0, 1))
)
Script = dict[tuple[str, RequestCode], Any]


class ScriptedPeers(ConnectionPool):
    """Answers by (address, code): a Struct or bytes as body, an offset as header, or an error. Records the requests."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        cluster = ClusterInfo(BROKERS, {"C": tuple(BROKERS)})
        self.script: Script = {
            (NAMES, RequestCode.GET_BROKER_CLUSTER_INFO): cluster,
            (NAMES, RequestCode.GET_ROUTEINFO_BY_TOPIC): ROUTE,
            **script,
        }
        self.sent: list[tuple[str, RequestCode, msgspec.Struct | None]] = []
        self.bodies: list[bytes] = []  # of the requests, in the order of `sent`

    async def exchange(self, request: ServerRequest) -> Command:
        addr, code, header, body, _ = request
        self.sent.append((addr, RequestCode(code), header))
        self.bodies.append(body)
        answer = self.script.get((addr, RequestCode(code)), ConnectionLost(addr, "refused"))
        if callable(answer):
            answer = answer(header)
        if isinstance(answer, ReplyError):
            return Command(answer.code, 0, 1, answer.remark)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return Command(0, 0, 1, None, encode_header(OffsetResponse(answer)))
        return Command(0, 0, 1, None, None, answer if isinstance(answer, bytes) else fastjson.write(answer))

    def changes(self, *codes: RequestCode) -> list[tuple[str, msgspec.Struct | None]]:
        return [(addr, header) for addr, code, header in self.sent if code in codes]

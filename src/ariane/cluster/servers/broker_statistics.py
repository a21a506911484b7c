"""Statistics that a broker counts by topic and group (request 315).

TOPIC_PUT_NUMS topic        masters               messages stored
GROUP_GET_NUMS topic@group  masters and slaves    messages delivered to a group
"""

from __future__ import annotations

from ariane.cluster.connection import BrokerServer, ClusterConnection
from ariane.errors import ReplyError
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.stats import BrokerStatsData, BrokerStatsItem, ViewBrokerStats

STORED, DELIVERED = "TOPIC_PUT_NUMS", "GROUP_GET_NUMS"  # statistics of a topic, and of topic@group


class BrokerStatisticOperations(ClusterConnection):
    """Statistics of brokers."""

    async def broker_statistic(self, server: BrokerServer, name: str, key: str) -> BrokerStatsData:
        """Return a statistic over the last minute, hour and day; zeros if the broker has counted nothing.

        Raises:
            ReplyError: the broker rejected the request.
            ConnectionLost, RequestTimeout: the broker did not respond.
        """
        try:
            answer = await self.request(server.addr, RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStats(name, key))
        except ReplyError as error:
            if is_uncounted(error.code, error.remark):
                return BrokerStatsData(BrokerStatsItem(), BrokerStatsItem(), BrokerStatsItem())
            raise
        return fastjson.decode(answer.body, BrokerStatsData)


def is_uncounted(code: int, remark: str | None) -> bool:
    """Return whether a broker responded that it has no such statistic: it creates one with the first event."""
    return code == ResponseCode.SYSTEM_ERROR and "not exist" in (remark or "")

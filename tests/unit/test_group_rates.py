"""Delivery rates of a consumer group by master and slave, against scripted brokers."""

from __future__ import annotations

import asyncio
from typing import Any

from ariane.cluster.admin import Admin
from ariane.cluster.groups.group_rates import GroupRates, WindowRates
from ariane.errors import ConnectionLost, ReplyError
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.stats import BrokerStatsData, BrokerStatsItem
from scripted_peers import MASTER, NAMES, OTHER, SLAVE, Script, ScriptedPeers

VIEW = RequestCode.VIEW_BROKER_STATS_DATA
NOT_COUNTED = ReplyError(ResponseCode.SYSTEM_ERROR, "The stats <GROUP_GET_NUMS> <T@G> not exist")


def statistic(minute: float, hour: float, *, hour_sum: int = 1_000_000) -> BrokerStatsData:
    return BrokerStatsData(
        BrokerStatsItem(), BrokerStatsItem(0.0, hour_sum, hour), BrokerStatsItem(0.0, round(minute * 60), minute)
    )


def answers(stored: Any, delivered: Any) -> Any:
    return lambda header: stored if header.stats_name == "TOPIC_PUT_NUMS" else delivered


def rates(script: Script, *topics: str) -> tuple[GroupRates, ScriptedPeers]:
    async def main() -> tuple[GroupRates, ScriptedPeers]:
        peers = ScriptedPeers(script)
        return await Admin(NAMES, peers=peers).group_rates("G", topics), peers

    return asyncio.run(main())


# The case of a group whose reads a slave serves: the master delivers nothing.
SERVED_BY_SLAVE: Script = {
    (MASTER, VIEW): answers(statistic(3.0, 2.0), NOT_COUNTED),
    (SLAVE, VIEW): answers(ReplyError(1, "must not be asked"), statistic(2.75, 2.5)),
    (OTHER, VIEW): answers(statistic(1.0, 1.0), statistic(0.25, 0.5)),
}


def test_deliveries_of_slaves_count_and_what_is_stored_is_that_of_masters() -> None:
    found, peers = rates(SERVED_BY_SLAVE, "T")
    assert [(item.server.addr, item.delivered) for item in found.servers] == [
        (MASTER, WindowRates(0.0, 0.0)),
        (SLAVE, WindowRates(2.75, 2.5)),
        (OTHER, WindowRates(0.25, 0.5)),
    ]
    assert found.delivered == WindowRates(3.0, 3.0)
    assert found.stored == WindowRates(4.0, 3.0)
    keys = {(addr, header.stats_key) for addr, code, header in peers.sent if code == VIEW}
    assert keys == {(MASTER, "T"), (MASTER, "T@G"), (SLAVE, "T@G"), (OTHER, "T"), (OTHER, "T@G")}


def test_rates_of_several_topics_are_added() -> None:
    found, _ = rates(SERVED_BY_SLAVE, "T", "%RETRY%G")
    assert found.delivered == WindowRates(6.0, 6.0)


def test_a_server_without_a_response_makes_the_sum_unknown_and_is_named() -> None:
    found, _ = rates({**SERVED_BY_SLAVE, (SLAVE, VIEW): ConnectionLost(SLAVE, "refused")}, "T")
    assert found.delivered is None
    assert found.stored == WindowRates(4.0, 3.0)
    assert [(missing.broker, missing.addr) for missing in found.unavailable] == [("broker-a", SLAVE)]


def test_an_hour_that_is_not_sampled_yet_is_unknown() -> None:
    young = statistic(2.0, 0.0, hour_sum=0)
    found, _ = rates({**SERVED_BY_SLAVE, (OTHER, VIEW): answers(young, young)}, "T")
    assert found.delivered == WindowRates(4.75, None)

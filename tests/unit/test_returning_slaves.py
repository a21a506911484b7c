"""A SYNC_MASTER that starts: without write permission while its slaves, which name servers list, are not connected again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.replication import returning_slaves
from ariane.broker.replication.returning_slaves import start_registration
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.requests.routing import BrokerData, TopicRoute

SLAVE, MASTER = BrokerData({1: "h:2"}, "broker-a"), BrokerData({0: "h:1"}, "broker-a")
LOG_END = 100


class Start:
    """Registration and replication of a broker that starts. `withheld` are the permissions of its registrations."""

    def __init__(self, *brokers: BrokerData) -> None:
        self._route = TopicRoute(broker_datas=brokers) if brokers else None
        self.withheld_permission = 0
        self.withheld: list[int] = []
        self.replicas_end = -1  # up to which slaves have the log

    async def route(self, topic: str) -> TopicRoute | None:
        assert topic == "broker-a"
        return self._route

    async def start(self) -> None:
        self.withheld.append(self.withheld_permission)

    def allow(self) -> None:
        self.withheld.append(0)

    def has_replicas(self, end: int) -> bool:
        self.replicas_end += 60  # with each look
        return self.replicas_end >= end

    def run(self, role: str = "SYNC_MASTER") -> list[int]:
        config = BrokerConfig(broker_name="broker-a", broker_role=role)  # type: ignore[arg-type]

        async def start() -> None:
            tasks = BackgroundTasks("test")
            await start_registration(config, self, self, tasks, LOG_END)  # type: ignore[arg-type]
            while self.withheld == [2]:
                await asyncio.sleep(0)
            await tasks.close()

        asyncio.run(start())
        return self.withheld


def test_a_sync_master_is_writable_once_a_listed_slave_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returning_slaves, "POLL_S", 0)
    start = Start(SLAVE)
    assert start.run() == [2, 0]
    assert start.replicas_end >= LOG_END


def test_it_is_writable_after_a_while_without_slaves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(returning_slaves, "LIMIT_S", 0)
    start = Start(SLAVE)
    start.replicas_end = -10_000
    with caplog.at_level(logging.WARNING):
        assert start.run() == [2, 0]
    assert "start h:2" in caplog.text


@pytest.mark.parametrize("brokers", [(), (MASTER,), (BrokerData({1: "h:9"}, "broker-b"),)])
def test_it_is_writable_at_once_where_no_slave_is_listed(brokers: tuple[BrokerData, ...]) -> None:
    assert Start(*brokers).run() == [0]


def test_others_do_not_wait_for_slaves() -> None:
    assert Start(SLAVE).run("ASYNC_MASTER") == [0]
    assert Start(SLAVE).run("SLAVE") == [0]

"""Group names that a heartbeat may contain. No socket."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.handlers.admin.client_sessions import ClientSessionHandler
from ariane.broker.lifecycle.client_registry import ClientRegistry
from ariane.broker.state.consumer_filters import ConsumerFilters, FilterTable
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.queue_locks import QueueLocks
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import ProtocolError
from ariane.filter.bloom import Bloom
from ariane.model.topic import SubscriptionGroupConfig
from ariane.net.limits.quotas import Quotas
from ariane.net.replies import make_peer
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests.admin import SubscriptionGroupTable
from ariane.protocol.requests.clients import ConsumerData, HeartbeatData
from ariane.protocol.requests.routing import TopicTable


def session_handler(*stored: str) -> ClientSessionHandler:
    groups = SubscriptionGroupTable(
        subscription_group_table={name: SubscriptionGroupConfig(group_name=name) for name in stored}
    )
    settings = DynamicConfig(BrokerConfig(broker_name="broker-a"), 0)
    return ClientSessionHandler(
        settings=settings,
        topics=TopicRegistry(TopicTable(), settings.current, now_ms=lambda: 0),
        groups=GroupRegistry(groups, auto_create=True, now_ms=lambda: 0),
        clients=ClientRegistry(settings=settings, clock=SYSTEM_CLOCK),
        filters=ConsumerFilters(FilterTable(), Bloom.sized(20, 32), keep_ms=1, now_ms=lambda: 0),
        locks=QueueLocks(),
        lock_durability=SimpleNamespace(wait_locks_durable=lambda: None),
        quotas=Quotas(),
        clock=SYSTEM_CLOCK,
    )


def beat(broker: ClientSessionHandler, group: str) -> None:
    body = fastjson.write(HeartbeatData("c", (ConsumerData(group_name=group),)))
    broker.heartbeat(Command(RequestCode.HEART_BEAT, body=body), make_peer(1, ("127.0.0.1", 1)))


@pytest.mark.parametrize(
    "group", ["G", "%RETRY%ns%G", "GID_a|b", "CID_RMQ_SYS_TRANS", "g" * 255, "team.service", "a:b", "组"]
)
def test_a_heartbeat_accepts_each_group_name_that_4_9_4_accepts(group: str) -> None:
    """Java clients allow fewer characters than brokers; other clients check no names."""
    broker = session_handler()
    beat(broker, group)
    assert broker.clients.members.client_ids(group) == ["c"]
    assert broker.groups.get(group) is not None


@pytest.mark.parametrize("group", ["", " ", "a@b", "a/b", "a\nb", "g" * 256])
def test_a_heartbeat_rejects_names_that_files_and_tables_cannot_store(group: str) -> None:
    broker = session_handler()
    with pytest.raises(ProtocolError, match="groupName"):
        beat(broker, group)
    assert not broker.clients.members.consumers

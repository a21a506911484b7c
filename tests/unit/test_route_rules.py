"""From routes to queues and addresses."""

from __future__ import annotations

import pytest
from client_script import route
from msgspec.structs import replace

from ariane.errors import RouteNotFound
from ariane.model.message import MessageQueue
from ariane.protocol.client_rules import route_rules
from ariane.protocol.requests.routing import BrokerData, QueueData, TopicRoute


def test_publish_queues_are_sorted_by_broker_and_need_a_master_and_permission():
    result = TopicRoute(
        broker_datas=(
            BrokerData({0: "b:1"}, "b"),
            BrokerData({0: "a:1"}, "a"),
            BrokerData({1: "s:1"}, "slave-only"),
            BrokerData({0: "r:1"}, "read-only"),
        ),
        queue_datas=(
            QueueData("b", 6, 8, 0, 1),
            QueueData("slave-only", 6, 1, 0, 1),
            QueueData("read-only", 4, 1, 0, 1),
            QueueData("a", 2, 1, 0, 2),
        ),
    )
    assert route_rules.publish_queues("T", result) == (
        MessageQueue("T", "a", 0),
        MessageQueue("T", "a", 1),
        MessageQueue("T", "b", 0),
    )


def test_an_order_configuration_determines_the_queues():
    result = replace(route("a", "b", queues=4), order_topic_conf="b:2;a:1")
    assert route_rules.publish_queues("T", result) == (
        MessageQueue("T", "b", 0),
        MessageQueue("T", "b", 1),
        MessageQueue("T", "a", 0),
    )


def test_an_invalid_order_configuration_is_an_error():
    with pytest.raises(RouteNotFound, match="broker:queues"):
        route_rules.publish_queues("T", replace(route("a"), order_topic_conf="b:x"))


def test_subscribe_queues_need_no_master():
    result = TopicRoute(broker_datas=(BrokerData({1: "s:1"}, "a"),), queue_datas=(QueueData("a", 4, 2, 0, 9),))
    assert route_rules.subscribe_queues("T", result) == (MessageQueue("T", "a", 0), MessageQueue("T", "a", 1))


def test_the_default_topics_route_is_capped():
    assert [data.write_queue_nums for data in route_rules.cap_queues(route("a", queues=8), 4).queue_datas] == [4]
    assert [data.write_queue_nums for data in route_rules.cap_queues(route("a", queues=3), 4).queue_datas] == [3]


@pytest.mark.parametrize(
    ("ids", "wanted", "expected"),
    [
        ({0: "m", 1: "s"}, 0, ("m", False)),
        ({0: "m", 1: "s"}, 1, ("s", True)),
        ({0: "m", 2: "s"}, 1, ("s", True)),
        ({0: "m"}, 1, ("m", False)),
        ({3: "s"}, 0, ("s", True)),
        ({}, 0, None),
    ],
)
def test_the_pull_address_follows_the_suggested_broker(ids, wanted, expected):
    assert route_rules.select_pull_address({"a": ids}, "a", wanted) == expected


@pytest.mark.parametrize(
    ("servers", "avoided", "expected"),
    [
        ({1: "s", 0: "m"}, (), 0),
        ({2: "t", 1: "s"}, (), 1),
        ({0: "m", 1: "s", 2: "t"}, ("m",), 1),
        ({0: "m", 1: "s"}, ("m", "s"), 0),
    ],
)
def test_the_preferred_server_is_the_master_or_the_first_slave_that_is_not_avoided(servers, avoided, expected):
    assert route_rules.preferred_server(servers, avoided) == expected

"""Rules of the route table. Time is a number."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ariane.errors import ConfigError, ProtocolError, ServerUnavailable
from ariane.model.topic import DataVersion, TopicConfig
from ariane.nameserver import registration
from ariane.nameserver.config import NAME_SERVER_SETTINGS, NameServerConfig
from ariane.nameserver.route_table import BROKER_LIVE_MS, TOPICS_PER_SLICE, RouteTable
from ariane.protocol import fastjson
from ariane.protocol.requests.routing import BrokerRef, RegisterBroker, RegisterBrokerBody, TopicTable


def header(name: str = "a", addr: str = "h:1", broker_id: int = 0, cluster: str = "C") -> RegisterBroker:
    return RegisterBroker(name, addr, cluster, f"{addr}2", broker_id)


def body(*topics: str, counter: int = 1, perm: int = 6, flag: int = 0) -> RegisterBrokerBody:
    table = {
        name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4, perm=perm, topic_sys_flag=flag)
        for name in topics
    }
    return RegisterBrokerBody(topic_config_serialize_wrapper=TopicTable(DataVersion(counter, 1), table))


def all_of(slices: Iterator[list[str]]) -> list[str]:
    return sorted(itertools.chain.from_iterable(slices))


def test_a_route_contains_queues_and_addresses() -> None:
    routes = RouteTable()
    routes.register(header("a", "h:1"), body("T"), 1, 0)
    routes.register(header("b", "h:2"), body("T", "U"), 2, 0)
    result = routes.find_route("T")
    assert result is not None
    assert [(data.broker_name, data.broker_addrs) for data in result.broker_datas] == [
        ("a", {0: "h:1"}),
        ("b", {0: "h:2"}),
    ]
    assert [data.write_queue_nums for data in result.queue_datas] == [4, 4]
    assert routes.find_route("none") is None
    assert all_of(routes.topics()) == ["T", "U"]


FRAMES = st.lists(st.tuples(st.sampled_from(["register", "unregister"]), st.integers(1, 4)), max_size=12)


@given(FRAMES)
def test_the_master_of_the_latest_epoch_wins_in_any_order_of_frames(frames: list[tuple[str, int]]) -> None:
    """Frames of a former master arrive late: they neither replace nor remove its successor. (docs/failover.md)"""
    routes = RouteTable()
    routes.register(header(addr="slave:1", broker_id=1), body(), 9, 0)
    latest, master = 0, None
    for kind, epoch in frames:
        of_master = msgspec.structs.replace(header(addr=f"m{epoch}:1"), epoch=epoch)
        if kind == "unregister":
            routes.unregister(BrokerRef("a", of_master.broker_addr, "C", 0))
            master = None if epoch == latest else master
        elif epoch < latest:
            with pytest.raises(ServerUnavailable, match=f"in epoch {epoch}, the last one is {latest}"):
                routes.register(of_master, body("T", counter=epoch), epoch, 0)
        else:
            routes.register(of_master, body("T", counter=epoch), epoch, 0)
            latest, master = epoch, of_master.broker_addr
        addrs = routes.clusters().broker_addr_table["a"].broker_addrs
        assert (addrs.get(0), addrs[1]) == (master, "slave:1")


def test_epochs_end_with_the_last_broker_of_a_name() -> None:
    routes = RouteTable()
    routes.register(msgspec.structs.replace(header(addr="h:1"), epoch=9), body("T"), 1, 0)
    routes.register(header(addr="h:3"), body("T"), 3, 0)  # of a broker without failover
    routes.remove_peer(1)
    routes.remove_peer(3)
    routes.register(msgspec.structs.replace(header(addr="h:2"), epoch=1), body("T"), 2, 0)
    assert routes.clusters().broker_addr_table["a"].broker_addrs == {0: "h:2"}


def test_topics_are_updated_only_with_another_version_and_never_removed() -> None:
    routes = RouteTable()
    routes.register(header(), body("T"), 1, 0)
    routes.register(header(), body("U"), 1, 0)
    assert all_of(routes.topics()) == ["T"]
    routes.register(header(), body("U", counter=2), 1, 0)
    assert all_of(routes.topics()) == ["T", "U"]


def test_a_slave_registers_no_topics_and_receives_its_masters_address() -> None:
    routes = RouteTable()
    assert routes.register(header(addr="h:9", broker_id=1), body("T"), 2, 0).master_addr is None
    assert routes.find_route("T") is None
    routes.register(header(), body("T"), 1, 0)
    answer = routes.register(header(addr="h:9", broker_id=1), body("T"), 2, 0)
    assert (answer.master_addr, answer.ha_server_addr) == ("h:1", "h:12")
    result = routes.find_route("T")
    assert result is not None and result.broker_datas[0].broker_addrs == {0: "h:1", 1: "h:9"}


def test_an_address_registered_under_a_new_id_is_removed_from_the_old_one() -> None:
    routes = RouteTable()
    routes.register(header(broker_id=1), body("T"), 1, 0)
    routes.register(header(broker_id=0), body("T"), 1, 0)
    result = routes.find_route("T")
    assert result is not None and result.broker_datas[0].broker_addrs == {0: "h:1"}


def test_a_broker_without_heartbeats_for_two_minutes_is_removed_with_its_topics() -> None:
    routes = RouteTable()
    routes.register(header("a", "h:1"), body("T"), 1, 0)
    routes.register(header("b", "h:2"), body("T", "U"), 2, 1000)
    assert routes.expire(BROKER_LIVE_MS) == []
    assert routes.expire(BROKER_LIVE_MS + 1) == ["h:1"]
    result = routes.find_route("T")
    assert result is not None and [data.broker_name for data in result.queue_datas] == ["b"]
    assert routes.remove_peer(2) == ["h:2"]
    assert all_of(routes.topics()) == []


def test_a_reconnected_broker_remains_registered_when_its_old_connection_closes() -> None:
    routes = RouteTable()
    routes.register(header(), body("T"), 1, 0)
    routes.register(header(), body("T"), 2, 10)
    assert routes.remove_peer(1) == []
    assert routes.find_route("T") is not None


def test_a_broker_name_is_removed_with_its_last_address() -> None:
    routes = RouteTable()
    routes.register(header(), body("T"), 1, 0)
    routes.register(header(addr="h:9", broker_id=1), body(), 2, 0)
    routes.unregister(BrokerRef("a", "h:1", "C", 0))
    result = routes.find_route("T")
    assert result is not None and result.broker_datas[0].broker_addrs == {1: "h:9"}
    routes.unregister(BrokerRef("a", "h:9", "C", 1))
    assert routes.find_route("T") is None
    assert routes.clusters().cluster_addr_table == {}


def test_write_permission_is_wiped_until_a_new_version_is_registered() -> None:
    routes = RouteTable()
    routes.register(header(), body("T", "U"), 1, 0)
    assert sum(routes.wipe_write_perm("a")) == 2
    assert sum(routes.wipe_write_perm("none")) == 0
    routes.register(header(), body("T", "U"), 1, 0)
    result = routes.find_route("T")
    assert result is not None and result.queue_datas[0].perm == 4
    assert sum(routes.add_write_perm("a")) == 2
    assert sum(routes.wipe_write_perm("a")) == 2
    routes.register(header(), body("T", counter=2), 1, 0)
    result = routes.find_route("T")
    assert result is not None and result.queue_datas[0].perm == 6


def test_a_version_query_of_a_registered_broker_counts_as_a_heartbeat() -> None:
    routes = RouteTable()
    reference = BrokerRef("a", "h:1", "C", 0)
    assert routes.refresh_version(reference, DataVersion(1, 1), 0) is None
    routes.register(header(), body("T"), 1, 0)
    assert routes.refresh_version(reference, DataVersion(2, 1), BROKER_LIVE_MS) == DataVersion(1, 1)
    assert routes.refresh_version(reference, DataVersion(1, 1), BROKER_LIVE_MS) == DataVersion(1, 1)
    assert routes.expire(BROKER_LIVE_MS + 1) == []


def test_topics_are_listed_by_cluster_unit_and_name() -> None:
    routes = RouteTable()
    routes.register(header("a", "h:1", cluster="C"), body("T", flag=1), 1, 0)
    routes.register(header("b", "h:2", cluster="D"), body("T", "U", flag=2), 2, 0)
    assert all_of(routes.topics_of_cluster("C")) == ["T"]
    assert all_of(routes.topics_of_cluster("D")) == ["T", "U"]
    assert all_of(routes.topics_by_unit(1)) == ["T"]
    assert all_of(routes.topics_by_unit(2, 1)) == ["U"]
    assert routes.system_topics()[0] == ["C", "D", "a", "b"]
    routes.delete_topic("T", "C")
    assert all_of(routes.topics_of_cluster("C")) == []
    routes.delete_topic("T")
    assert all_of(routes.topics()) == ["U"]


def test_a_broker_with_many_topics_is_removed_and_lists_are_built_in_slices() -> None:
    routes = RouteTable()
    names = [f"T{number}" for number in range(2 * TOPICS_PER_SLICE + 1)]
    routes.register(header("a", "h:1"), body(*names, "only a"), 1, 0)
    routes.register(header("b", "h:2"), body(*names), 2, 0)
    assert [len(part) for part in routes.topics()] == [TOPICS_PER_SLICE, TOPICS_PER_SLICE, 2, 0, 0, 0]
    changes = routes.wipe_write_perm("b")
    assert next(changes) == TOPICS_PER_SLICE
    routes.delete_topic(names[-1])
    assert sum(changes) == TOPICS_PER_SLICE  # the deleted one is not brought back
    assert routes.find_route(names[-1]) is None
    assert (routes.topic_count("a"), routes.topic_count("b")) == (2 * TOPICS_PER_SLICE + 1, 2 * TOPICS_PER_SLICE)
    routes.remove_peer(1)
    assert routes.find_route("only a") is None
    assert all_of(routes.topics()) == sorted(names[:-1])


def test_an_outline_contains_the_version_and_no_topics() -> None:
    request = RegisterBroker("a", "h:1", "C", "h:2", 0)
    data = fastjson.write(body("T", counter=5))
    read = registration.outline(request, data, 401)
    assert read is not None
    assert read.topic_config_serialize_wrapper == TopicTable(DataVersion(5, 1))
    assert registration.outline(request, data, 36) is None
    assert registration.outline(request, b"{", 401) is None


def registered(data: bytes, version: int = 401, *, compressed: bool = False, crc: int = 0) -> TopicTable:
    request = RegisterBroker("a", "h:1", "C", "h:2", 0, compressed, crc)
    return registration.decode(request, data, version).topic_config_serialize_wrapper


def test_a_registration_is_decoded_in_all_three_formats() -> None:
    plain = fastjson.write(body("T"))
    assert registered(plain, crc=zlib.crc32(plain) & 0x7FFFFFFF) == body("T").topic_config_serialize_wrapper
    old = fastjson.write(body("T").topic_config_serialize_wrapper)
    assert registered(old, version=36) == body("T").topic_config_serialize_wrapper

    def piece(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    for topic in (
        b"T 4 4 6 SINGLE_TAG",
        b"T 4 4 6 SINGLE_TAG ",
        b'T 4 4 6 SINGLE_TAG {"message.type":"FIFO"}',
    ):  # the last two: 5.x
        packed = piece(b'{"counter":1,"timestamp":1}') + (1).to_bytes(4, "big") + piece(topic) + piece(b"[]")
        assert registered(zlib.compress(packed, 9), compressed=True) == body("T").topic_config_serialize_wrapper
    assert registered(b"") == TopicTable()


@pytest.mark.parametrize(
    ("data", "compressed", "crc"),
    [
        (fastjson.write(body("T")), False, 1),
        (fastjson.write(body("../T")), False, 0),
        (b"no json", False, 0),
        (b"no zlib", True, 0),
        (zlib.compress(b"\0\0\0\x09short"), True, 0),
        (zlib.compress(b"\xff\xff\xff\xff"), True, 0),
    ],
)
def test_an_invalid_registration_is_rejected(data: bytes, compressed: bool, crc: int) -> None:
    with pytest.raises(ProtocolError):
        registered(data, compressed=compressed, crc=crc)


def test_only_safe_settings_can_change_at_run_time() -> None:
    config = NameServerConfig().validate()
    assert NAME_SERVER_SETTINGS.change(config, {"orderMessageEnable": "true"})[0].order_message_enable
    assert NAME_SERVER_SETTINGS.change(config, {"listenPort": str(config.listen_port)})[0] == config
    with pytest.raises(ConfigError, match="kvConfigPath"):
        NAME_SERVER_SETTINGS.change(config, {"kvConfigPath": "/etc/passwd"})


def test_every_address_of_a_broker_counts_towards_the_limit() -> None:
    """A name server accepts 10,000 brokers; one name could register any number of addresses."""
    routes = RouteTable()
    routes.register(header("a", "h:1"), body("T"), 1, 0)
    routes.register(header("a", "h:2", broker_id=1), body(), 2, 0)
    assert (routes.address_count(), routes.has_address("h:2"), routes.has_address("h:3")) == (2, True, False)
    routes.remove_peer(2)
    assert (routes.address_count(), routes.has_address("h:2")) == (1, False)

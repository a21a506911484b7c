"""Filters of consumer groups: versions, death and return, the file; the bloom filter that Java brokers expect in it."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import pytest

from ariane.broker.config import BROKER_SETTINGS, BrokerConfig
from ariane.broker.dynamic_config import DynamicConfig
from ariane.broker.handlers.pull_query import PullQueryBuilder
from ariane.broker.state import consumer_filters as filters_module
from ariane.broker.state import json_documents
from ariane.broker.state.consumer_filters import ConsumerFilters, FilterTable
from ariane.errors import ConfigError, ProtocolError, ReplyError
from ariane.filter.bloom import Bloom, murmur3
from ariane.protocol import fastjson, properties, record
from ariane.protocol.codes import ResponseCode
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.messaging import PullMessage
from ariane.testing.clock import FakeClock

DAY_MS = 86_400_000
BLOOM = Bloom.sized(20, 32)


def made(table: FilterTable | None = None, *, clock: FakeClock | None = None, bloom: Bloom = BLOOM) -> ConsumerFilters:
    return ConsumerFilters(table or FilterTable(), bloom, keep_ms=DAY_MS, now_ms=(clock or FakeClock(1_000_000)).now_ms)


def sql(expression: str | None, version: int = 1, topic: str = "T", kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(expression_type=kind, sub_string=expression, sub_version=version, topic=topic)


def expression(filters: ConsumerFilters, group: str = "G", topic: str = "T") -> str | None:
    known = filters.get(group, topic)
    return known.sql.expression if known else None


def test_the_bloom_filter_is_the_one_of_java():
    assert (BLOOM.hashes, BLOOM.bits) == (3, 112)
    assert BLOOM.positions("CGSQL#TopicTest") == (6, 92, 66)
    assert Bloom.sized(10, 64) == (4, 312)


@pytest.mark.parametrize(
    ("text", "half"),
    [("", 0), ("hello", 0xCBD8A7B341BD9B02), ("The quick brown fox jumps over the lazy dog", 0xE34BBC7BBC071B6C)],
)
def test_murmur3_gives_its_published_values(text, half):
    assert murmur3(text.encode()) == half


def test_a_heartbeat_leaves_a_filter_and_only_for_sql92():
    filters = made()
    filters.register("G", [sql("a > 5"), sql("TagA", topic="U", kind="TAG"), sql("x", topic="V", kind="CLASS")])
    assert expression(filters) == "a > 5"
    assert filters.get("G", "U") is filters.get("G", "V") is filters.get("H", "T") is None
    assert filters.is_changed


def test_a_newer_version_replaces_an_older_one_does_not():
    filters = made()
    filters.register("G", [sql("a > 5", 2)])
    filters.register("G", [sql("a > 6", 1)])
    assert expression(filters) == "a > 5"
    filters.register("G", [sql("a > 6", 2)])
    assert expression(filters) == "a > 5"
    filters.register("G", [sql("a > 6", 3)])
    assert expression(filters) == "a > 6"


def test_the_same_expression_in_a_newer_version_keeps_its_birth():
    clock = FakeClock(1_000_000)
    filters = made(clock=clock)
    filters.register("G", [sql("a > 5", 1)])
    clock.advance_ms(10)
    filters.register("G", [sql("a > 5", 2)])
    data = filters.get("G", "T").data
    assert (data.born_time, data.client_version) == (1_000_000, 2)


def test_the_same_heartbeat_again_changes_nothing():
    filters = made()
    filters.register("G", [sql("a > 5")])
    filters.is_changed = False
    filters.register("G", [sql("a > 5")])
    assert not filters.is_changed


@pytest.mark.parametrize("bad", ["a >", "", None])
def test_a_bad_expression_leaves_no_filter_and_takes_the_old_one_away(bad):
    filters = made()
    filters.register("G", [sql(bad, 1)])
    assert filters.get("G", "T") is None
    filters.register("G", [sql("a > 5", 2)])
    filters.register("G", [sql(bad, 3)])
    assert filters.get("G", "T") is None
    assert filters.table() == FilterTable()


def test_filters_die_with_their_group_or_topic_and_live_again():
    clock = FakeClock(1_000_000)
    filters = made(clock=clock)
    filters.register("G", [sql("a > 5"), sql("b > 5", topic="U")])
    filters.register("G", [sql("a > 5")])
    assert filters.get("G", "U").data.dead_time == clock.now_ms()
    assert not filters.get("G", "T").is_dead
    clock.advance_ms(5)
    filters.mark_group_dead("G")
    filters.mark_group_dead("unknown")
    assert filters.get("G", "T").data.dead_time == clock.now_ms()
    assert filters.get("G", "U").data.dead_time == clock.now_ms() - 5
    filters.register("G", [sql("a > 5"), sql("b > 5", 2, topic="U")])
    assert not filters.get("G", "T").is_dead
    assert not filters.get("G", "U").is_dead


def test_what_is_long_dead_is_forgotten():
    clock = FakeClock(1_000_000)
    filters = made(clock=clock)
    filters.register("G", [sql("a > 5")])
    filters.register("H", [sql("a > 5")])
    filters.mark_group_dead("G")
    clock.advance_ms(DAY_MS - 1)
    filters.remove_dead()
    assert filters.get("G", "T")
    clock.advance_ms(1)
    filters.is_changed = False
    filters.remove_dead()
    assert filters.get("G", "T") is None
    assert filters.get("H", "T")
    assert filters.is_changed


def test_there_is_a_bound(monkeypatch):
    monkeypatch.setattr(filters_module, "FILTERS_MAX", 2)
    filters = made()
    with pytest.raises(ReplyError, match="2 filters, the maximum"):
        filters.register("G", [sql("a > 5", topic=f"T{number}") for number in range(3)])


STORED = """{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"bloomFilterData":{"bitNum":112,"bitPos":[1,2,3]},"bornTime":900000,
"clientVersion":7,"consumerGroup":"G","dead":false,"deadTime":0,"expression":"a > 5","expressionType":"SQL92","topic":"T"},
"H":{"bloomFilterData":{"bitNum":112,"bitPos":[1,2,3]},"bornTime":990000,
"clientVersion":7,"consumerGroup":"H","dead":true,"deadTime":990005,"expression":"b > 5","expressionType":"SQL92","topic":"T"},
"I":{"bloomFilterData":{"bitNum":112,"bitPos":[1,2,3]},"bornTime":990000,
"clientVersion":7,"consumerGroup":"I","dead":false,"deadTime":0,"expression":"b > 5","expressionType":"SQL92","topic":"T"},
"J":{"bloomFilterData":{"bitNum":112,"bitPos":[1,2,3]},"bornTime":990000,
"clientVersion":7,"consumerGroup":"J","dead":false,"deadTime":0,"expression":"b >","expressionType":"SQL92","topic":"T"}
},"topic":"T"}}}""".replace("\n", "")


def test_a_file_is_read_and_all_that_lived_is_dead():
    filters = made(fastjson.decode(STORED.encode(), FilterTable))
    assert expression(filters) == "a > 5"
    assert filters.get("G", "T").data.dead_time == 970_000  # 30 s before the start
    assert filters.get("H", "T").data.dead_time == 990_005
    assert filters.get("I", "T").data.dead_time == 990_000  # not before its birth
    assert filters.get("J", "T") is None  # no expression
    assert all(filters.get(group, "T").data.dead for group in "GHI")


def test_a_file_of_another_bloom_filter_is_dropped():
    filters = made(fastjson.decode(STORED.encode(), FilterTable), bloom=Bloom.sized(10, 32))
    assert filters.table() == FilterTable()
    assert filters.is_changed


def test_the_file_has_javas_form():
    filters = made()
    filters.register("CGSQL", [sql("a > 5", 7, topic="TopicTest")])
    written = json.loads(json_documents.encode(filters.table()))
    group = {
        "bloomFilterData": {"bitNum": 112, "bitPos": [6, 92, 66]},
        "bornTime": 1_000_000,
        "clientVersion": 7,
        "consumerGroup": "CGSQL",
        "dead": False,
        "deadTime": 0,
        "expression": "a > 5",
        "expressionType": "SQL92",
        "topic": "TopicTest",
    }
    assert written == {"filterDataByTopic": {"TopicTest": {"groupFilterData": {"CGSQL": group}, "topic": "TopicTest"}}}
    assert list(written["filterDataByTopic"]["TopicTest"]["groupFilterData"]["CGSQL"]) == list(group)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_error_rate_of_bloom_filter", 0),
        ("max_error_rate_of_bloom_filter", 100),
        ("expect_consumer_num_use_filter", 0),
        ("expect_consumer_num_use_filter", 10_001),
        ("filter_data_clean_time_span", -1),
    ],
)
def test_settings_that_cannot_be_used(key, value):
    with pytest.raises(ConfigError):
        BrokerConfig(broker_name="b", **{key: value}).validate()


def test_keys_of_broker_conf():
    texts = {
        "brokerName": "b",
        "enablePropertyFilter": "true",
        "filterSupportRetry": "true",
        "filterDataCleanTimeSpan": "5",
        "enableCalcFilterBitMap": "true",
        "enableConsumeQueueExt": "true",
    }
    config, remarks = BROKER_SETTINGS.parse(texts)
    assert config.enable_property_filter and config.filter_support_retry and config.filter_data_clean_time_span == 5
    assert [remark.split(":")[0] for remark in remarks] == [
        "enableCalcFilterBitMap, enableConsumeQueueExt have no effect"
    ]


@pytest.mark.parametrize(("version", "code"), [(2, None), (3, ResponseCode.FILTER_DATA_NOT_LATEST)])
def test_a_pull_needs_a_filter_as_new_as_its_subscription(version, code):
    filters = made()
    filters.register("G", [sql("a > 5", 2)])
    config = BrokerConfig(broker_name="b", enable_property_filter=True)
    nothing = SimpleNamespace()
    queries = PullQueryBuilder(
        settings=DynamicConfig(config, 0), topics=nothing, groups=nothing, members=nothing, filters=filters
    )
    request = PullMessage("G", "T", 0, 0, 32, 0, 0, 0, None, version, "SQL92")
    if code is None:
        assert queries.registered_filter(request, "SQL92").expression == "a > 5"
    else:
        with pytest.raises(ReplyError, match="2 < 3") as refused:
            queries.registered_filter(request, "SQL92")
        assert refused.value.code == code


def test_properties_of_a_record_without_the_rest():
    table = {"a": "5", "ü": "x" * 300}
    text = properties.encode(table).encode()
    for born, store in itertools.product((8, 20), repeat=2):
        data = record.encode(
            b"T", b"body", text, queue_id=0, queue_offset=0, offset=0, born_ms=1, born_host=b"\1" * born, store_ms=2,
            store_host=b"\1" * store,
        )  # fmt: skip
        assert record.property_map(data) == record.decode(data).property_map() == table
        for size in range(len(data)):
            with pytest.raises(ProtocolError):
                record.property_map(data[:size])


def test_the_expressions_of_all_groups_are_bounded(monkeypatch):
    monkeypatch.setattr(filters_module, "EXPRESSIONS_MAX", 12)
    filters = made()
    filters.register("G", [sql("a > 5")])
    filters.register("H", [sql("b > 5")])
    with pytest.raises(ReplyError, match="12 characters"):
        filters.register("I", [sql("c > 5")])
    filters.register("G", [sql("a > 55", version=2)])
    filters.register("G", [sql("a > 6", version=3)])
    assert (expression(filters, "G"), expression(filters, "H"), expression(filters, "I")) == ("a > 6", "b > 5", None)


def test_expressions_that_cannot_be_compiled_write_few_log_lines(caplog):
    filters = made()
    for version in range(100):
        filters.register("G", [sql("a >", version)])
    assert len(caplog.records) == 10
    assert "suppressed" in caplog.records[-1].getMessage()
    assert filters.get("G", "T") is None

"""Filters of consumer groups: versions, deactivation and reactivation, the file, and Java's bloom filter in it."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import pytest

from ariane.broker.config.broker_config import BROKER_SETTINGS, BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.handlers.reading.pull_filter import PullFilterBuilder
from ariane.broker.state import consumer_filters as filters_module
from ariane.broker.state.consumer_filters import ConsumerFilters, FilterTable
from ariane.broker.state.saved import json_documents
from ariane.errors import ConfigError, ProtocolError, ReplyError
from ariane.filter.bloom import Bloom, murmur3
from ariane.protocol import fastjson
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records import properties, record
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


def test_the_bloom_filter_equals_javas():
    assert (BLOOM.hashes, BLOOM.bits) == (3, 112)
    assert BLOOM.positions("CGSQL#TopicTest") == (6, 92, 66)
    assert Bloom.sized(10, 64) == (4, 312)


@pytest.mark.parametrize(
    ("text", "half"),
    [("", 0), ("hello", 0xCBD8A7B341BD9B02), ("The quick brown fox jumps over the lazy dog", 0xE34BBC7BBC071B6C)],
)
def test_murmur3_matches_its_published_test_vectors(text, half):
    assert murmur3(text.encode()) == half


def test_a_heartbeat_registers_filters_for_sql92_only():
    filters = made()
    filters.register("G", [sql("a > 5"), sql("TagA", topic="U", kind="TAG"), sql("x", topic="V", kind="CLASS")])
    assert expression(filters) == "a > 5"
    assert filters.get("G", "U") is filters.get("G", "V") is filters.get("H", "T") is None
    assert filters.is_changed


def test_only_a_newer_version_replaces_a_filter():
    filters = made()
    filters.register("G", [sql("a > 5", 2)])
    filters.register("G", [sql("a > 6", 1)])
    assert expression(filters) == "a > 5"
    filters.register("G", [sql("a > 6", 2)])
    assert expression(filters) == "a > 5"
    filters.register("G", [sql("a > 6", 3)])
    assert expression(filters) == "a > 6"


def test_a_newer_version_with_the_same_expression_retains_the_creation_time():
    clock = FakeClock(1_000_000)
    filters = made(clock=clock)
    filters.register("G", [sql("a > 5", 1)])
    clock.advance_ms(10)
    filters.register("G", [sql("a > 5", 2)])
    data = filters.get("G", "T").data
    assert (data.born_time, data.client_version) == (1_000_000, 2)


def test_a_repeated_heartbeat_changes_nothing():
    filters = made()
    filters.register("G", [sql("a > 5")])
    filters.is_changed = False
    filters.register("G", [sql("a > 5")])
    assert not filters.is_changed


@pytest.mark.parametrize("bad", ["a >", "", None])
def test_an_invalid_expression_is_not_registered_and_removes_the_previous_filter(bad):
    filters = made()
    filters.register("G", [sql(bad, 1)])
    assert filters.get("G", "T") is None
    filters.register("G", [sql("a > 5", 2)])
    filters.register("G", [sql(bad, 3)])
    assert filters.get("G", "T") is None
    assert filters.table() == FilterTable()


def test_filters_are_deactivated_with_their_group_or_topic_and_reactivated():
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


def test_filters_inactive_for_long_are_removed():
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


def test_the_number_of_filters_is_bounded(monkeypatch):
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


def test_filters_loaded_from_the_file_are_inactive():
    filters = made(fastjson.decode(STORED.encode(), FilterTable))
    assert expression(filters) == "a > 5"
    assert filters.get("G", "T").data.dead_time == 970_000  # 30 s before the start
    assert filters.get("H", "T").data.dead_time == 990_005
    assert filters.get("I", "T").data.dead_time == 990_000  # not before its birth
    assert filters.get("J", "T") is None  # no expression
    assert all(filters.get(group, "T").data.dead for group in "GHI")


def test_a_file_with_different_bloom_filter_parameters_is_discarded():
    filters = made(fastjson.decode(STORED.encode(), FilterTable), bloom=Bloom.sized(10, 32))
    assert filters.table() == FilterTable()
    assert filters.is_changed


def test_the_file_has_the_format_of_java():
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
def test_invalid_filter_settings_are_rejected(key, value):
    with pytest.raises(ConfigError):
        BrokerConfig(broker_name="b", **{key: value}).validate()


def test_filter_keys_of_broker_conf_are_parsed_or_reported_as_without_effect():
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
def test_a_pull_needs_a_filter_at_least_as_new_as_its_subscription(version, code):
    filters = made()
    filters.register("G", [sql("a > 5", 2)])
    config = BrokerConfig(broker_name="b", enable_property_filter=True)
    nothing = SimpleNamespace()
    queries = PullFilterBuilder(
        settings=DynamicConfig(config, 0), topics=nothing, groups=nothing, members=nothing, filters=filters
    )
    request = PullMessage("G", "T", 0, 0, 32, 0, 0, 0, None, version, "SQL92")
    if code is None:
        assert queries.registered_filter(request, "SQL92").expression == "a > 5"
    else:
        with pytest.raises(ReplyError, match="2 < 3") as refused:
            queries.registered_filter(request, "SQL92")
        assert refused.value.code == code


def test_properties_are_decoded_without_decoding_the_whole_record():
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


def test_the_total_size_of_expressions_is_bounded(monkeypatch):
    monkeypatch.setattr(filters_module, "EXPRESSIONS_MAX", 12)
    filters = made()
    filters.register("G", [sql("a > 5")])
    filters.register("H", [sql("b > 5")])
    with pytest.raises(ReplyError, match="12 characters"):
        filters.register("I", [sql("c > 5")])
    filters.register("G", [sql("a > 55", version=2)])
    filters.register("G", [sql("a > 6", version=3)])
    assert (expression(filters, "G"), expression(filters, "H"), expression(filters, "I")) == ("a > 6", "b > 5", None)


def test_an_invalid_expression_is_logged_once_and_then_counted(caplog):
    """A consumer that registers again after each refused pull caused an ERROR twice a second."""
    clock = FakeClock(1_000_000, tick_ms=500)
    filters = made(clock=clock)
    for version in range(1200):  # ten minutes
        filters.register("G", [sql("a >", version)])
    filters.register("H", [sql("b >")])
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    texts = [record.getMessage() for record in caplog.records]
    assert "group G to T: " in texts[0] and "suppressed for 600 s" in texts[0]
    assert "group H to T: " in texts[1]
    filters.register("G", [sql("a >", 1201)])
    assert "1199 log lines about the filter 'a >' of group G on topic T were" in caplog.records[2].getMessage()
    assert filters.get("G", "T") is None

"""SQL92 compared with Java 4.9.4: each expression evaluates as in Java's parser and evaluator, and consumers of either side
receive the messages that their expression selects."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from pathlib import Path

import pytest
from interop_servers import produce

from ariane.client import ConsumerSettings, Producer, PushConsumer, Sql
from ariane.errors import FilterError, ReplyError
from ariane.filter.sql import compile_sql
from ariane.model.message import Message
from ariane.protocol.codes import ResponseCode
from ariane.testing import LocalCluster, java

pytestmark = pytest.mark.interop

# Each is asked with each of PROPERTIES.
EXPRESSIONS = """
a = 5|a = 5.0|a = '5'|a > 5|a >= 5|a < 5|a <= 5|a <> 5|a <> '5'|5 = a|5 > a|5 <= a|5.5 < a|'5' = a
a > 5 AND b = 'x'|a > 5 OR b = 'x'|NOT (a > 5)|NOT a|NOT a = 5|NOT a > 5|NOT NOT (a = 5)|a|b|(a)|a AND b = 'x'|a OR b = 'x'
a BETWEEN 1 AND 10|a NOT BETWEEN 1 AND 10|a BETWEEN 10 AND 1|a BETWEEN -5 AND 5|a BETWEEN 5 AND -5|a BETWEEN 1.5 AND 7
a BETWEEN 'a' AND 'b'|a BETWEEN b AND 10|a BETWEEN NULL AND 5|5 BETWEEN 1 AND 10|a BETWEEN 1 AND 10 AND b = 'x'
a NOT BETWEEN 10 AND 1|a BETWEEN 1 AND TRUE|a BETWEEN 5 AND 5
b IN ('x')|b IN ('x', 'y', 'z')|b NOT IN ('x')|b IN ('1','2','3','4','5','6','x')|b NOT IN ('1','2','3','4','5','6','x')
a IN (5)|'x' IN ('x')|(b) IN ('x')|b IN ()|b IN ('x',)|b IN 'x'|missing NOT IN ('x')|b NOT NULL
a IS NULL|a IS NOT NULL|missing IS NULL|missing IS NOT NULL|NULL IS NULL|5 IS NULL|(a = 5) IS NULL|a IS TRUE|a IS|a IS NOT 5
a IS NULL IS NULL|a IS NOT NULL AND b IS NOT NULL|NOT a IS NULL
a = NULL|NULL = a|a <> NULL|a > NULL|a = TRUE|a = FALSE|TRUE = a|FALSE = a|TRUE = TRUE|TRUE <> FALSE|TRUE = 1|1 = TRUE|a > TRUE
TRUE|FALSE|NULL|true|False|5|'x'|5.5|-5|NOT TRUE|NOT NULL|NOT 5|NOT 'x'|TRUE AND NULL|FALSE AND NULL|TRUE OR NULL|FALSE OR NULL
1 = 1|1 = 2|1 = 1.0|1 > 2|2 > 1.5|1.5 < 2|'a' = 'a'|'a' = 'b'|'1' = 1|1 = '1'|'x' = 1
1 < 'x'|'a' > 'b'
a = -5|a = - 5|a = +5|a = --5|a > -5|-a > 5|- 'x' = a|a = -b|a = -missing|missing = -missing|-5 < a|+a = 5|a = - - 5|-TRUE = a
a = 2147483647|a = 2147483648|a > 2147483648|a < -2147483648|a = 9223372036854775807
a = 9223372036854775808|a = 5L|a = 5l|a > 3000000000L
a = 0|a > 0|a = 0.0|a > 0.5|a > .5|a > 5.|a > 5E0|a > 5e-1|a > 5.5E+1|a = 1e999|a > 1e-400
a = 4.9E-324|a = 1.7976931348623157E308
a > b|a = b|a <> b|b > a|a < b|a = missing|missing = a|missing = missing|a > missing|missing <> a|a <> missing|a = a|a > a|a >= a
(a = 5) = TRUE|(a = 5) = (b = 'x')|(a = 5) = b|b = (a = 5)|(a = 5) > 1|1 = (a = 5)|(a = 5) = 1|(a = 5) <> FALSE
a = 5 = TRUE|a = b = b
a > 1 > 2|a = 5 > 1|(a > 1) AND (b = 'x' OR a < 3)|a > 1 AND b = 'x' OR a < 3|a > 1 OR b = 'x' AND a < 3|NOT a > 1 OR b = 'x'
b = 'it''s'|b = ''|b = 'x|b = "x"|b = 'ä€𝄞'|b <> 'it''s'|_a$1 = 'q'|$ = 'd'|ä = 1|1a = 5|a.b = 5
A = 5|aNd = 5|a = 5 and b = 'x' oR a = 6|a between 1 and 9|b in ('x')|a is not null|not (a = 5)
a == 5|a != 5|a =|= 5|a = 5 AND|AND a = 5|(a = 5|a = 5 OR OR b = 'x'|()|NOT|a NOT 5|a BETWEEN 1|a BETWEEN 1 OR 2|, |a @ 5|a = 5 ? 1
a /* c */ = 5|a = 5 /* it's | ** */|a /* = 5|/**/a = 5|a /***/ = 5|a = 5 -- c|a = 5 AND /* x */ b = 'x'
a = 5;b|a=5|a=5AND b='x'|a>5OR(b='x')
TRUE OR a = TRUE|a = 5 OR TRUE = b|TRUE = b OR a = 5|a > 'x'|b > 5 OR a = 5|a = 5 OR b > 5|b > 5 AND a = 5|a = 6 AND b > 5|NOT b > 5
TRUE = b AND a = 6|a = 6 AND TRUE = b|NOT (missing = 5)|missing > 5 OR TRUE|missing > 5 AND FALSE|missing > 5 OR a = 5
KEYS = 'k'|TAGS = 't' AND a > 1
"""
PROPERTIES: list[dict[str, str]] = [
    {},
    {"a": "5"},
    {"a": "5", "b": "x"},
    {"a": "7", "b": "x", "KEYS": "k", "TAGS": "t"},
    {"a": "5.0", "b": "y"},
    {"a": "-5", "b": "5"},
    {"a": "+5", "b": "it's"},
    {"a": " 5", "b": "ä€𝄞"},
    {"a": "abc", "b": "true"},
    {"a": "true", "b": "TRUE"},
    {"a": "3000000000", "b": "-3000000000"},
    {"a": "NaN", "b": "Infinity"},
    {"a": "-0.0", "b": "0.0"},
    {"a": "0", "b": "0x1p3"},
    {"a": "1e1", "b": "5d"},
    {"a": "٥", "b": "٥.٥"},
    {"a": "9223372036854775808", "b": "1_0"},
    {"_a$1": "q", "$": "d", "A": "5", "b": "9"},
]

# Where ours says "refused" and Java's parser stops in silence at the place that we show.
DROPPED_BY_JAVA = [
    "a = 5 b = 6",
    "a = 5)",
    "a = 5 ADN b = 'x'",
    "a LIKE 'x%'",
    "a CONTAINS 'x'",
    "a = 007",
    "a > 007",
    "a > 0x5",
    "a-b = 5",
    "a = 0L",
    "a = 5 'x'",
    "a = 5 NULL",
    "a = 5 (b = 'x')",
]


def ours(expression: str, properties: dict[str, str]) -> str:
    try:
        compiled = compile_sql(expression)
    except FilterError:
        return "refused"
    try:
        truth = compiled.truth(properties)
    except ValueError:
        return "error"
    return "unknown" if truth is None else str(truth).lower()


def java_answers(tmp_path: Path, asked: list[tuple[str, dict[str, str]]]) -> list[str]:
    path = tmp_path / "asked"
    lines = [json.dumps({"expression": text, "properties": properties}) for text, properties in asked]
    path.write_text("\n".join(lines))
    return [event["answer"] for event in java.events(java.run("ariane.peers.Filter", [str(path)]))]


def differences(asked: list[tuple[str, dict[str, str]]], answers: list[str]) -> list[tuple[object, ...]]:
    assert len(answers) == len(asked)
    results = []
    for (text, properties), theirs in zip(asked, answers, strict=True):
        if (python_result := ours(text, properties)) != theirs:
            results.append((text, properties, f"ours {python_result}", f"theirs {theirs}"))
    return results


def test_listed_expressions_evaluate_as_in_java(tmp_path):
    expressions = [part for line in EXPRESSIONS.strip().splitlines() for part in line.split("|")]
    assert len(expressions) > 150
    cases = list(itertools.product(expressions, PROPERTIES))
    answers = java_answers(tmp_path, cases)
    assert set(answers) == {"refused", "true", "false", "unknown", "error"}
    assert differences(cases, answers) == []


def test_random_expressions_evaluate_as_in_java(tmp_path):
    chance = random.Random(4094)
    cases = [(_random(chance, 3), chance.choice(PROPERTIES)) for _ in range(4000)]
    answers = java_answers(tmp_path, cases)
    assert all(answers.count(kind) > 50 for kind in ("refused", "true", "false", "unknown", "error"))
    assert differences(cases, answers) == []


def test_expressions_ignored_silently_by_java_are_rejected(tmp_path):
    cases = [(text, {"a": "5", "b": "y"}) for text in DROPPED_BY_JAVA]
    assert "refused" not in java_answers(tmp_path, cases)
    assert {ours(*item) for item in cases} == {"refused"}


def _random(chance: random.Random, depth: int) -> str:
    """Return a random condition, mostly one that 4.9.4 accepts."""

    def operand() -> str:
        words = ["a", "b", "missing", "5", "5.0", "7L", "3000000000", "'x'", "'5'", "TRUE", "NULL", "-5", "-a", "0.5"]
        return chance.choice(words[:4] * 3 + words)

    def inner() -> str:
        return _random(chance, depth - 1)

    plain = [
        lambda: f"{operand()} {chance.choice(['=', '<>', '>', '>=', '<', '<='])} {operand()}",
        lambda: f"{operand()} {chance.choice(['=', '<>', '>', '>=', '<', '<='])} {operand()}",
        lambda: f"{operand()} IS {chance.choice(['', 'NOT '])}NULL",
        lambda: f"a {chance.choice(['', 'NOT '])}BETWEEN {chance.randint(-3, 6)} AND {chance.randint(3, 9)}",
        lambda: f"b {chance.choice(['', 'NOT '])}IN ('x', '{chance.choice('y5')}')",
    ]
    joined = [
        lambda: f"{inner()} {chance.choice(['AND', 'OR'])} {inner()}",
        lambda: f"({inner()}) {chance.choice(['AND', 'OR', '='])} ({inner()})",
        lambda: f"NOT ({inner()})",
        lambda: f"NOT {inner()}",
    ]
    return chance.choice(plain + joined if depth else plain)()


# --- clients and brokers ---

FAST = ConsumerSettings(commit_interval=0.2)


def consume(namesrv: str, topic: str, group: str, expression: str, count: int) -> list[dict[str, object]]:
    args = [namesrv, topic, group, expression, str(count), "60", "sql"]
    return java.events(java.run("ariane.peers.Consume", args))


def test_a_java_consumer_receives_matching_messages_from_our_broker(tmp_path):
    with LocalCluster(tmp_path, enable_property_filter=True) as servers:
        produce(servers.namesrv, 100, "number=price", "tags=A,B")
        result = consume(servers.namesrv, "T", "G", "price >= 90 AND TAGS = 'B'", 5)
        assert {item["key"] for item in result} == {"K-91", "K-93", "K-95", "K-97", "K-99"}
        with java.start("ariane.peers.Consume", [servers.namesrv, "T", "H", "price = 7", "2", "60", "sql"]) as consumer:
            events = consumer.events(time.monotonic() + 60)
            assert next(events)["key"] == "K-7"
            produce(servers.namesrv, 10, "number=price", "keys=L")
            assert next(events)["key"] == "L-7"


@pytest.mark.parametrize(
    ("allowed", "expression", "told"), [(True, "price > AND", "CODE: 23"), (False, "a = 1", "CODE: 1 ")]
)
def test_unsupported_filters_fail_the_start_of_a_java_consumer(tmp_path, allowed, expression, told):
    with LocalCluster(tmp_path, enable_property_filter=allowed) as servers:
        produce(servers.namesrv, 1)
        with pytest.raises(RuntimeError, match=told):
            consume(servers.namesrv, "T", "G", expression, 1)


@pytest.mark.long(
    "tests/interop/test_client_features_at_java.py::test_push_by_sql",
)
def test_our_consumer_receives_matching_messages_from_a_java_broker(tmp_path):
    async def play(namesrv: str) -> list[str]:
        received: list[str] = []

        async def listener(messages):
            received.extend(message.properties["price"] for message in messages)

        async with Producer(namesrv, "P") as producer:
            for price in range(20):
                await producer.send(Message(topic="T", body=b"x", properties={"price": str(price)}))
            async with PushConsumer(namesrv, "G", {"T": Sql("price > 15")}, listener, start="first", settings=FAST):
                async with asyncio.timeout(60):
                    while len(received) < 4:
                        await asyncio.sleep(0.02)
            with pytest.raises(ReplyError) as refused:
                async with PushConsumer(namesrv, "H", {"T": Sql("price >")}, listener, start="first"):
                    pass
            assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        return received

    allowing = {"enablePropertyFilter": "true"}
    with java.name_server(tmp_path / "ns") as ns, java.broker(tmp_path / "b", ns.addr, properties=allowing):
        assert sorted(asyncio.run(play(ns.addr))) == ["16", "17", "18", "19"]


@pytest.mark.long(
    "tests/unit/test_broker_filters.py::test_the_file_has_the_format_of_java",
)
def test_filter_files_are_exchangeable_between_the_brokers(tmp_path):
    """Our consumerFilter.json is read and rewritten by a Java broker, and vice versa."""
    store, home = tmp_path / "store", tmp_path / "java"
    path = store / "config" / "consumerFilter.json"
    with LocalCluster(tmp_path, enable_property_filter=True) as servers:
        produce(servers.namesrv, 10, "number=price")
        consume(servers.namesrv, "T", "G", "price > 5", 4)
    python_result = json.loads(path.read_text())
    properties = {
        "enablePropertyFilter": "true",
        "storePathRootDir": str(store),
        "storePathCommitLog": str(store / "commitlog"),
        "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
        "mappedFileSizeConsumeQueue": "60000",
    }
    with java.name_server(tmp_path / "ns") as ns, java.broker(home, ns.addr, properties=properties):
        produce(ns.addr, 10, "number=price", "keys=J")
        assert len(consume(ns.addr, "T", "J", "price > 7", 4)) == 4
    theirs = json.loads(path.read_text())
    of_mine = python_result["filterDataByTopic"]["T"]["groupFilterData"]["G"]
    assert theirs["filterDataByTopic"]["T"]["groupFilterData"]["G"] == of_mine
    assert theirs["filterDataByTopic"]["T"]["groupFilterData"]["J"].keys() == of_mine.keys()
    with LocalCluster(tmp_path, enable_property_filter=True):
        pass
    repeated = json.loads(path.read_text())["filterDataByTopic"]["T"]["groupFilterData"]
    assert repeated["G"] == of_mine
    assert {k: v for k, v in repeated["J"].items() if k not in ("dead", "deadTime")} == {
        k: v
        for k, v in theirs["filterDataByTopic"]["T"]["groupFilterData"]["J"].items()
        if k not in ("dead", "deadTime")
    }

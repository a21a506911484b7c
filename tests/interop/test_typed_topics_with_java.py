"""Topics with a message type and groups of 5.x: `mqadmin` of 5.3.3 at its own broker and ours, ours at both, the store at 4.9.4."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop_servers import mqadmin, produce, pull_all
from mqadmin_differential import run_ours
from test_store_directory import JAVA_SMALL, SMALL

from ariane.testing import LocalCluster, java

pytestmark = pytest.mark.interop

LINES = (
    "updateTopic -c DefaultCluster -t A -a +message.type=FIFO",
    "updateTopic -c DefaultCluster -t A -r 3 -w 3",
    "updateTopic -c DefaultCluster -t A -a +message.type=WRONG",
    "updateTopic -c DefaultCluster -t A -a +nope=1",
    "updateTopic -c DefaultCluster -t A -a +message.type=DELAY,+reserve.time=-1",
    "updateTopic -c DefaultCluster -t A -a -message.type",
    "updateTopic -c DefaultCluster -t A -a -message.type",
    "updateTopic -c DefaultCluster -t A -a +queue.type=BatchCQ",
    "updateTopic -c DefaultCluster -t B -a -message.type",
    "updateTopic -c DefaultCluster -t B -a +reserve.time=x",
    "updateTopic -c DefaultCluster -t B -a +reserve.time=-5",
)
# The order of a Java map, and the attributes that 5.x prints of a topic without any; addresses differ.
RESULT = re.compile(r"create topic to \S+ success|CODE: \d+  DESC: .*|attributes=\{.+\}")


@pytest.fixture(scope="module")
def java_results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[list[str]]]]:
    if reason := java.V5.available():
        pytest.skip(f"Java peers: {reason}")
    home = tmp_path_factory.mktemp("java")
    with java.V5.name_server(home / "ns") as name_server, java.V5.broker(home / "broker", name_server.addr):
        yield name_server.addr, results(mqadmin(name_server.addr, *LINES, release=java.V5))


def results(outputs: list[str]) -> list[list[str]]:
    """Return what each command printed of its result, without addresses, and with attributes in one order."""
    return [
        [
            ",".join(sorted(text[12:-1].split(", "))) if text.startswith("attributes") else re.sub(r"to \S+", "", text)
            for text in RESULT.findall(output)
        ]
        for output in outputs
    ]


def test_attributes_are_changed_and_refused_as_at_java(java_results: tuple[str, list[list[str]]]) -> None:
    expected = java_results[1]
    assert sum(["CODE" in str(each) for each in expected]) == 7
    with LocalCluster() as servers:
        assert results(mqadmin(servers.namesrv, *LINES, release=java.V5)) == expected


def test_our_mqadmin_prints_the_same_at_both(java_results: tuple[str, list[list[str]]]) -> None:
    namesrv, _ = java_results
    line = "updateTopic -c DefaultCluster -t C -a +message.type=TRANSACTION"
    with LocalCluster() as servers:
        ours = [run_ours(addr, line) for addr in (namesrv, servers.namesrv)]
        (java_line,) = mqadmin(namesrv, line, release=java.V5)
    assert [each.status for each in ours] == [0, 0]
    assert results([each.output for each in ours]) == results([java_line]) * 2
    assert results([java_line]) == [["create topic  success", "+message.type=TRANSACTION"]]


def test_groups_of_5_are_created_and_shown_as_at_java(java_results: tuple[str, list[list[str]]]) -> None:
    policy = '{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":100,"max":900,"multiplier":3}}'
    lines = (
        f"updateSubGroup -c DefaultCluster -g G -o true -p {policy}",
        "updateSubGroup -c DefaultCluster -g H",
        "getConsumerConfig -g G",
        "getConsumerConfig -g H",
    )
    with LocalCluster() as servers:
        shown = [mqadmin(addr, *lines, release=java.V5)[2:] for addr in (java_results[0], servers.namesrv)]
    settings = re.compile(r"^(?:consume|group|retry)\w+\s+=.*", re.MULTILINE)
    expected, ours = ([sorted(settings.findall(output)) for output in outputs] for outputs in shown)
    assert ours == expected
    assert "initial=100, max=900, multiplier=3" in str(ours[0])


@pytest.mark.long(
    "tests/unit/test_topic_attributes.py::test_changes_are_applied_or_refused_with_the_texts_of_5x",
    "tests/interop/test_store_directory.py::test_a_store_opened_by_java_then_ours_then_java",
)
def test_a_store_with_attributes_is_opened_by_java_4_and_returned(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, **SMALL) as servers:
        (printed,) = mqadmin(
            servers.namesrv, "updateTopic -c DefaultCluster -t T -a +message.type=FIFO", release=java.V5
        )
        assert "success" in printed
        sent = produce(servers.namesrv, 5)
    with (
        java.name_server(tmp_path / "ns") as name_server,
        java.broker(tmp_path, name_server.addr, properties=JAVA_SMALL),
    ):
        assert {each["msgId"] for each in pull_all(name_server.addr, "T")} == {each["msgId"] for each in sent}
    with LocalCluster(tmp_path, **SMALL) as servers:
        assert len(pull_all(servers.namesrv, "T")) == 5


@pytest.mark.long(
    "tests/interop/test_typed_topics_with_java.py::test_groups_of_5_are_created_and_shown_as_at_java",
)
def test_the_mode_of_a_group_is_set_as_by_java() -> None:
    if reason := java.V5.available():
        pytest.skip(f"Java peers: {reason}")
    line = "setConsumeMode -c DefaultCluster -t Mode -g G -m POP -q 2"
    with LocalCluster() as servers:
        servers.create_topic("Mode")
        (printed,) = mqadmin(servers.namesrv, line, release=java.V5)
        ours = run_ours(servers.namesrv, line)
        refused = run_ours(servers.namesrv, line.replace("-t Mode", "-t Absent"))
    assert (ours.status, ours.output.split()) == (0, printed.split())
    assert refused.status == 1

"""`ariane topic`, `ariane cluster` and the subcommands of `ariane broker`, against a cluster: output, and effect of each change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from ariane.cli import main
from ariane.errors import ArianeError
from ariane.testing import LocalCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    home = tmp_path_factory.mktemp("cluster")
    with LocalCluster(home) as servers:
        yield servers


def run(cluster: LocalCluster, *words: str) -> str:
    done = CliRunner().invoke(main.app, [*words, "-n", cluster.namesrv], env={"COLUMNS": "80"})
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.stdout


def run_json(cluster: LocalCluster, *words: str) -> Any:
    return json.loads(run(cluster, *words, "--json"))


def fail(cluster: LocalCluster, *words: str) -> str:
    """Return the error of a command that fails; `ariane` prints it without a traceback."""
    done = CliRunner().invoke(main.app, [*words, "-n", cluster.namesrv])
    assert isinstance(done.exception, ArianeError), (done.output, done.exception)
    return str(done.exception)


def test_a_topic_is_created_shown_changed_and_deleted(cluster: LocalCluster) -> None:
    would = run(cluster, "topic", "create", "orders", "--queues", "3", "--dry-run")
    assert would == f"would create or change topic orders on {cluster.broker.addr}\n"
    assert [row["topic"] for row in run_json(cluster, "topic", "list")] == []

    created = run(cluster, "topic", "create", "orders", "--queues", "3")
    assert created == f"created topic orders with 3 queues on {cluster.broker.addr}\n"
    (row,) = run_json(cluster, "topic", "list")
    assert row == {
        "cluster": "DefaultCluster", "topic": "orders", "brokers": ["broker-a"], "readQueues": 3, "writeQueues": 3,
        "perms": [6],
    }  # fmt: skip
    assert "exists on broker-a" in fail(cluster, "topic", "create", "orders")

    run(cluster, "topic", "change", "orders", "--write-queues", "2", "--perm", "read")
    shown = run_json(cluster, "topic", "show", "orders")
    (settings,) = shown["settings"]
    assert (settings["readQueueNums"], settings["writeQueueNums"], settings["perm"]) == (3, 2, 4)
    assert (shown["messages"], shown["groups"], len(shown["queues"])) == (0, [], 2)
    assert "consumer groups: none" in run(cluster, "topic", "show", "orders")

    assert "would delete topic orders" in run(cluster, "topic", "delete", "orders", "--dry-run")
    run(cluster, "topic", "delete", "orders")
    assert run_json(cluster, "topic", "list") == []
    assert "orders" in fail(cluster, "topic", "delete", "orders")


def test_internal_topics_are_listed_on_request(cluster: LocalCluster) -> None:
    listed = {row["topic"] for row in run_json(cluster, "topic", "list", "--all")}
    assert {"TBW102", "DefaultCluster", "broker-a"} <= listed
    hidden = CliRunner().invoke(main.app, ["topic", "list", "-n", cluster.namesrv])
    assert f"{len(listed)} system, retry and dead-letter topics omitted" in hidden.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("topic", "change", "T"), "--perm"),
        (("topic", "change", "T", "--queues", "1", "--read-queues", "1"), "cannot be combined"),
        (("topic", "create", "T", "--queues", "0"), "expected 1 to"),
        (("topic", "show", "Missing"), "Missing"),
        (("topic", "create", "T", "-b", "broker-z"), "expected one of: broker-a"),
        (("broker", "set", "a", "b"), "--broker or --cluster"),
        (("broker", "clean", "-b", "broker-a"), "--expired-queues"),
        (("broker", "stop-writes", "broker-z"), "expected one of: broker-a"),
        (("cluster", "get-kv", "N", "k"), "no value N/k"),
    ],
)
def test_invalid_input_is_named_with_its_fix(cluster: LocalCluster, words: tuple[str, ...], reason: str) -> None:
    assert reason in fail(cluster, *words)


def test_an_invalid_permission_names_the_valid_ones(cluster: LocalCluster) -> None:
    done = CliRunner().invoke(main.app, ["topic", "create", "T", "--perm", "all", "-n", cluster.namesrv])
    assert done.exit_code == 2
    assert "expected read, write or read-write" in done.stderr


def test_the_state_of_all_servers_is_printed(cluster: LocalCluster) -> None:
    (server,) = run_json(cluster, "cluster", "status")
    assert (server["broker"], server["brokerId"], server["addr"]) == ("broker-a", 0, cluster.broker.addr)
    assert server["runtime"]["version"] == "V4_9_4"
    assert 0 < server["runtime"]["diskRatio"] < 1
    table = run(cluster, "cluster", "status")
    assert max(map(len, table.splitlines())) <= 80
    assert cluster.broker.addr in table and "master" in table


def test_name_server_settings_and_values_are_changed(cluster: LocalCluster) -> None:
    assert "orderMessageEnable=false" in run(cluster, "cluster", "config")
    run(cluster, "cluster", "set", "orderMessageEnable", "true")
    (server,) = run_json(cluster, "cluster", "config")
    assert (server["addr"], server["settings"]["orderMessageEnable"]) == (cluster.namesrv, "true")
    run(cluster, "cluster", "set-kv", "N", "k", "v=1")
    assert run(cluster, "cluster", "get-kv", "N", "k") == "v=1\n"
    assert "would delete N/k" in run(cluster, "cluster", "delete-kv", "N", "k", "--dry-run")
    run(cluster, "cluster", "delete-kv", "N", "k")
    assert "no value N/k" in fail(cluster, "cluster", "get-kv", "N", "k")


def test_producers_are_kept_away_from_a_broker(cluster: LocalCluster) -> None:
    run(cluster, "topic", "create", "drained")
    assert "removed the write permission of broker-a" in run(cluster, "broker", "stop-writes", "broker-a")
    assert run_json(cluster, "topic", "show", "drained")["settings"][0]["perm"] == 4
    (result,) = run_json(cluster, "broker", "allow-writes", "broker-a")
    assert result["nameServer"] == cluster.namesrv and result["topics"] > 1
    assert run_json(cluster, "topic", "show", "drained")["settings"][0]["perm"] == 6


def test_a_broker_is_inspected_and_cleaned(cluster: LocalCluster) -> None:
    values = run_json(cluster, "broker", "status", "broker-a")
    assert values["values"]["brokerVersionDesc"] == "V4_9_4"
    assert "brokerVersionDesc" in run(cluster, "broker", "status", cluster.broker.addr)
    settings = run(cluster, "broker", "config", "broker-a", "--key", "FLUSHDISK").splitlines()
    assert settings == ["flushDiskType=ASYNC_FLUSH"]
    cleaned = run_json(
        cluster, "broker", "clean", "-b", "broker-a", "--expired-log", "--expired-queues", "--unused-topics"
    )
    assert [change["addr"] for change in cleaned] == [cluster.broker.addr] * 3
    would = run(cluster, "broker", "set", "fileReservedTime", "48", "-b", "broker-a", "--dry-run")
    assert would == f"would set fileReservedTime = 48 on {cluster.broker.addr}\n"


def test_options_of_a_broker_before_a_subcommand_are_refused(cluster: LocalCluster) -> None:
    done = CliRunner().invoke(main.app, ["broker", "-n", cluster.namesrv, "status", "broker-a"])
    assert "place the options of status after its name" in str(done.exception)

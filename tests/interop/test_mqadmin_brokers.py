"""`mqadmin` on brokers, clusters and name servers: Java's tool and ours on the same servers, and every change by its effect."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from interop_servers import produce
from mqadmin_differential import (
    CLUSTERS,
    Comparison,
    Mask,
    ServerAddresses,
    run_both,
    run_java,
    run_json,
    run_ours,
    start_cluster,
)

SENT = 12
READS = {
    "clusters": "clusterList",
    "totals": "clusterList -m",
    "status": "brokerStatus -b {broker}",
    "cluster status": "brokerStatus -c DefaultCluster",
    "config": "getBrokerConfig -b {broker}",
    "cluster config": "getBrokerConfig -c DefaultCluster",
    "name server": "getNamesrvConfig",
}
# The tools ask one after the other, and these values move meanwhile.
MOVING = (
    Mask(r"(?<=runtime {25}: ).*", "uptime"),
    Mask(r"(?<=: )\[ \d+ days.*", "uptime"),
    Mask(r"(?m)(?<=Tps {24}: ).*$", "rate"),
    Mask(r"(?m)(?<=Tps {18}: ).*$", "rate"),
    Mask(r"(?m)((?:put|get|send|pull|query|EndTransaction)\w*(?:Tps|Max|HeadWaitTimeMills)\s*: ).*$", "rate or wait"),
    Mask(
        r"(?m)(pageCacheLockTimeMills|commitLogDirCapacity|remain\w+|dispatch\w+|putMessageDistributeTime)\s*: .*$",
        "load",
    ),
    Mask(r"(?m)(putLatency\w+|commitLogDiskRatio\w*|consumeQueueDiskRatio)(\S*)\s*: .*$", "disk or latency"),
)
# A broker with a small log reports no time of its earliest message: Java prints the hours since 1970, we print `unknown`.
RATES = (
    Mask(r" +\d+\.\d\d\(\d+,\d+ms\)", "rate, load"),
    Mask(r"\d+ +(\d+\.\d\d|unknown) +0\.\d{4}$", "lock, age, disk"),
)


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerAddresses]:
    with start_cluster(request.param, tmp_path_factory.mktemp(request.param)) as servers:
        produce(servers.namesrv, SENT)
        yield servers


@pytest.fixture(scope="module")
def reads(cluster: ServerAddresses) -> dict[str, Comparison]:
    lines = [line.format(broker=cluster.broker) for line in READS.values()]
    return dict(zip(READS, run_both(cluster.namesrv, *lines), strict=True))


def test_servers_are_listed_alike(reads: dict[str, Comparison], cluster: ServerAddresses) -> None:
    reads["clusters"].assert_equal(RATES)
    reads["totals"].assert_equal()
    (server,) = run_json(cluster.namesrv, "clusterList")
    assert (server["addr"], server["runtime"]["putToday"]) == (cluster.broker, SENT)
    assert "table" not in server["runtime"]


@pytest.mark.parametrize("name", ["status", "cluster status"])
def test_the_state_of_a_broker_is_printed_alike(reads: dict[str, Comparison], name: str) -> None:
    reads[name].assert_equal(MOVING)
    theirs, ours = reads[name].fields("msgPutTotalTodayNow")
    assert theirs == ours
    assert ours[0][-1] == str(SENT)


@pytest.mark.parametrize("name", ["config", "cluster config", "name server"])
def test_settings_are_printed_alike(reads: dict[str, Comparison], name: str) -> None:
    """Java prints them in the order of a hash table, ours are sorted; titles come first in both."""
    reads[name].assert_equal(in_any_order=True)
    assert reads[name].java.splitlines()[0] == reads[name].ours.splitlines()[0]
    keys = [line.split("=")[0] for line in reads[name].ours.splitlines()[1:] if line]
    assert keys == sorted(keys)


def test_a_setting_of_a_broker_is_changed(cluster: ServerAddresses) -> None:
    key = "waitTimeMillsInSendQueue"
    for target, value in ((f"-b {cluster.broker}", "301"), ("-c DefaultCluster", "302")):
        line = f"updateBrokerConfig {target} -k {key} -v {value}"
        (theirs,), ours = run_java(cluster.namesrv, line), run_ours(cluster.namesrv, line)
        assert ours == (theirs, "", 0)
    line = f"updateBrokerConfig -b {cluster.broker} -k {key} -v 303"
    assert run_ours(cluster.namesrv, line + " --dry-run").output == f"would set {key} = 303 on {cluster.broker}\n"
    (settings,) = run_json(cluster.namesrv, f"getBrokerConfig -b {cluster.broker}")
    assert settings["settings"][key] == "302"


def test_stores_are_cleaned_alike(cluster: ServerAddresses) -> None:
    lines = [
        f"{name}{target}"
        for name in ("cleanExpiredCQ", "deleteExpiredCommitLog", "cleanUnusedTopic")
        for target in (f" -b {cluster.broker}", " -c DefaultCluster", "")
    ]
    for comparison in run_both(cluster.namesrv, *lines):
        comparison.assert_equal()
        assert comparison.ours == "success"


def test_kv_values_and_write_permissions_are_changed_alike(cluster: ServerAddresses) -> None:
    lines = (
        "updateKvConfig -s N -k key -v value",
        "deleteKvConfig -s N -k key",
        "wipeWritePerm -b broker-a",
        "addWritePerm -b broker-a",
    )
    for comparison in run_both(cluster.namesrv, *lines):
        comparison.assert_equal()
    assert re.search(r"OK, [1-9]", comparison.ours)
    for line, perm in (("wipeWritePerm -b broker-a", 4), ("addWritePerm -b broker-a", 6)):
        assert run_ours(cluster.namesrv, line).status == 0
        assert run_json(cluster.namesrv, "topicRoute -t T")["queueDatas"][0]["perm"] == perm


def test_a_setting_of_a_name_server_is_changed(cluster: ServerAddresses) -> None:
    (changed,) = run_both(cluster.namesrv, "updateNamesrvConfig -k orderMessageEnable -v true")
    changed.assert_equal()
    assert run_ours(cluster.namesrv, "updateOrderConf -t T -m put -v broker-a:2").status == 0
    assert run_json(cluster.namesrv, "topicRoute -t T")["orderTopicConf"] == "broker-a:2"


def test_failures_have_a_reason_and_an_exit_status(cluster: ServerAddresses) -> None:
    cases = {
        "brokerStatus -c Nowhere": "no cluster Nowhere; expected one of: DefaultCluster",
        "brokerStatus -b 127.0.0.1:1": "127.0.0.1:1",
        "getBrokerConfig -b broker-z": "no broker broker-z; expected one of: broker-a",
        "wipeWritePerm -b broker-z": "no broker broker-z; expected one of: broker-a",
        "updateKvConfig -s N -k key": "-v/--value",
        "cleanExpiredCQ -b 127.0.0.1:1": "127.0.0.1:1",
    }
    for line, reason in cases.items():
        ours = run_ours(cluster.namesrv, line)
        assert ours.status in (1, 2), line
        assert reason in ours.error, (line, ours)

"""`mqadmin` exports: Java's files and ours of the same cluster.

`rocketmqVersion` is the tool's version in Java's metrics.json, and the broker's in ours; `exportTime` and rates move. Rates that a
broker does not report yet are 0 in Java's file and absent in ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interop_servers import produce
from mqadmin_differential import CLUSTERS, Comparison, ServerAddresses, run_both, run_java, run_ours, start_cluster

from ariane.protocol import fastjson

SENT = 4
FILES = {
    "exportMetadata -c DefaultCluster": "metadata.json",
    "exportMetadata -c DefaultCluster -t -s": "topic.json",
    "exportMetadata -c DefaultCluster -g": "subscriptionGroup.json",
    "exportConfigs -c DefaultCluster": "configs.json",
    "exportMetrics -c DefaultCluster": "metrics.json",
}

NOT_YET = ("normalInTps", "normalOutTps", "totalNormalInTps", "totalNormalOutTps")


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerAddresses]:
    with start_cluster(request.param, tmp_path_factory.mktemp(request.param)) as servers:
        produce(servers.namesrv, SENT)
        assert run_ours(servers.namesrv, "updateSubGroup -c DefaultCluster -g G -q 2").status == 0
        yield servers


def without_moving(value: Any) -> Any:
    """Return an export without what differs between two exports of the same cluster."""
    value.pop("exportTime", None)
    for load in value.get("evaluateReport", {}).values():
        for part in ("tps", "oneDayNum"):
            load["runtimeQuota"][part] = [name for name in sorted(load["runtimeQuota"][part]) if name not in NOT_YET]
        load["runtimeQuota"].pop("diskRatio")
        load["runtimeVersion"].pop("rocketmqVersion")
    if "totalData" in value:
        value["totalData"] = {
            name: [entry for entry in sorted(table) if entry not in NOT_YET]
            for name, table in value["totalData"].items()
        }
    return value


def test_exports_are_written_alike(cluster: ServerAddresses, tmp_path: Path) -> None:
    # Both tools write the same files: ours are read before Java's tool writes them again.
    lines = [f"{line} -f {tmp_path}/export" for line in FILES]
    compared: list[Comparison] = run_both(cluster.namesrv, *lines)
    written = {name: (tmp_path / "export" / name).read_bytes() for name in FILES.values()}
    for comparison in compared:
        comparison.assert_equal()

    run_java(cluster.namesrv, *lines)
    theirs = {name: (tmp_path / "export" / name).read_bytes() for name in FILES.values()}
    for name, ours in written.items():
        assert without_moving(fastjson.read(ours)) == without_moving(fastjson.read(theirs[name])), name


def test_an_export_of_one_broker(cluster: ServerAddresses, tmp_path: Path) -> None:
    ours = run_ours(cluster.namesrv, f"exportMetadata -b {cluster.broker} -t -f {tmp_path}/new --json")
    printed = json.loads(ours.output)
    assert printed["path"] == f"{tmp_path}/new/topic.json"
    assert set(fastjson.read(Path(printed["path"]).read_bytes())["topicConfigTable"]) == {"T"}
    neither = run_ours(cluster.namesrv, f"exportMetadata -b {cluster.broker} -f {tmp_path}/new")
    assert neither.status == 2
    assert "expected -t (topics) or -g (groups)" in neither.error

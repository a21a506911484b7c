"""Our exporter and Apache's rocketmq-exporter at one Java 4.9.4 cluster with traffic, from a recording of both.

The recording contains the scrape of Apache's exporter, and the responses that ours received a few seconds later. Every series of
Apache's is compared: stable values are equal, values that move with time are close, and each other difference has its reason here.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from pathlib import Path

import msgspec
import pytest

from ariane.metrics.exporter import ExporterSource
from ariane.metrics.polling.cluster_poller import ClusterPoller
from ariane.metrics.serving.exposition import encode
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests import encode_header as fields_of

DATA = Path(__file__).resolve().parents[1] / "data" / "metrics"
RUNTIME = "rocketmq_brokeruntime_"

Series = tuple[str, frozenset[tuple[str, str]]]

# Apache's value is older by up to 5 s: it polls by a timer.
MOVING = {
    **{f"{RUNTIME}{name}_tps10": 5.0 for name in ("put", "getfound", "getmiss", "gettotal", "gettransfered")},
    **{f"{RUNTIME}{name}_tps60": 10.0 for name in ("put", "getfound", "getmiss", "gettotal", "gettransfered")},
    f"{RUNTIME}msg_gettotal_today_now": 10,
    "rocketmq_client_consume_ok_msg_tps": 0.1,
    "rocketmq_client_consume_rt": 0.1,
    "rocketmq_consumer_offset": 5,
    "rocketmq_group_diff": 5,
    "rocketmq_group_get_latency_by_storetime": 5_000,
}
# Apache shows 0 for a rate over a time that the broker has not run yet, and -1 for an unknown time.
UNKNOWN = {
    f"{RUNTIME}earliest_message_timestamp": -1,
    **{f"{RUNTIME}{name}_tps600": 0 for name in ("put", "getfound", "getmiss", "gettransfered")},
}
# Apache cuts the unit off (`5.3 KiB` is 5), and repeats the address of a client that has left.
WRONG_AT_APACHE = {f"{RUNTIME}remain_howmanydata_toflush", "rocketmq_group_count"}


class RecordedServers:
    """Answers requests with recorded responses."""

    def __init__(self) -> None:
        recording = json.loads(gzip.decompress((DATA / "cluster-java-4.9.4.json.gz").read_bytes()))
        self.namesrv = recording["namesrv"]
        self._responses = {
            (item["addr"], item["code"], tuple(sorted(item["header"].items()))): item for item in recording["responses"]
        }

    async def request(
        self, addr: str, code: int, header: msgspec.Struct | None = None, body: bytes = b"", *, timeout_ms: float = 3000
    ) -> Command:
        fields = fields_of(header) if header else {}
        if code == RequestCode.QUERY_CONSUMER_OFFSET:
            # Newer than the recording. A Java broker answers 0 for a queue without a committed offset that begins in memory.
            return Command(0, fields={"offset": "0"})
        item = self._responses[addr, code, tuple(sorted(fields.items()))]
        return Command(item["reply"], remark=item["remark"], body=item["body"].encode())


def parse(text: str) -> dict[Series, float]:
    results = {}
    for line in text.splitlines():
        # Apache's exporter ends the labels with a comma, which prometheus-client's parser rejects.
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if match and not line.startswith("#"):
            labels = re.findall(r'(\w+)="([^"]*)"', match[2] or "")
            results[match[1], frozenset(labels)] = float(match[3])
    return results


@pytest.fixture(scope="module")
def ours() -> dict[Series, float]:
    async def scrape() -> str:
        servers = RecordedServers()
        families = await ExporterSource(ClusterPoller(servers, [servers.namesrv], detail_wait_s=60)).families(None)
        return "".join(encode(families, is_openmetrics=False))

    return parse(asyncio.run(scrape()))


@pytest.fixture(scope="module")
def theirs() -> dict[Series, float]:
    return parse((DATA / "cluster-java-4.9.4.prom").read_text())


def test_every_series_of_apache_has_its_counterpart(ours: dict[Series, float], theirs: dict[Series, float]) -> None:
    assert len(theirs) == 170
    missing = {series for series in theirs if series not in ours}
    assert {name for name, _ in missing} == {*UNKNOWN, "rocketmq_group_count"}
    assert {name: theirs[name, labels] for name, labels in missing if name in UNKNOWN} == UNKNOWN
    stale = [dict(labels) for name, labels in missing if name not in UNKNOWN]
    assert [item["group"] for item in stale] == ["offline"]
    assert ours["rocketmq_group_count", frozenset({"caddr": "", "localaddr": "", "group": "offline"}.items())] == 0


def test_stable_values_are_equal_and_moving_ones_close(ours: dict[Series, float], theirs: dict[Series, float]) -> None:
    equal, close = 0, 0
    for (name, labels), value in theirs.items():
        if (name, labels) not in ours or name in WRONG_AT_APACHE:
            continue
        if name in MOVING:
            assert ours[name, labels] == pytest.approx(value, abs=MOVING[name]), (name, dict(labels))
            close += 1
        else:
            assert ours[name, labels] == value, (name, dict(labels))
            equal += 1
    assert (equal, close) == (115, 44)


def test_no_series_of_apaches_names_is_added(ours: dict[Series, float], theirs: dict[Series, float]) -> None:
    added = [
        (name, dict(labels)) for name, labels in ours if name.startswith("rocketmq_") and (name, labels) not in theirs
    ]
    assert added == [("rocketmq_group_count", {"caddr": "", "localaddr": "", "group": "offline"})]

"""docs/metrics.md lists every metric as the code declares it.

To rewrite the tables after a change: `python tests/style/test_metrics_page.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ariane.metrics.broker.broker_metrics import BROKER_METRICS
from ariane.metrics.broker.opentelemetry_names import OPENTELEMETRY_METRICS
from ariane.metrics.cluster_metrics import EXPORTER_METRICS
from ariane.metrics.collector_metrics import COLLECTOR_METRICS
from ariane.metrics.exporter import POLL_METRICS
from ariane.metrics.families import MetricTable
from ariane.metrics.name_server_source import NAME_SERVER_METRICS
from ariane.metrics.port_metrics import port_metrics
from ariane.metrics.proxy_source import PROXY_METRICS
from ariane.metrics.reference import update_page
from ariane.pipeline.pipeline_metrics import PIPELINE_METRICS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def part(*prefixes: str) -> MetricTable:
    return {metric: samples for metric, samples in EXPORTER_METRICS.items() if metric.name.startswith(prefixes)}


PORTS = {
    name: port_metrics(f"ariane_{name}") for name in ("exporter", "pipeline", "collector")
}  # of those that only serve metrics
RUNTIME = "rocketmq_brokeruntime_"
TABLES: dict[str, MetricTable] = {
    "topics": part("rocketmq_producer_", "rocketmq_topic_", "ariane_topic_"),
    "groups": part("rocketmq_group_", "rocketmq_consumer_", "rocketmq_send_back_", "ariane_group_"),
    "clients": part("rocketmq_client_"),
    "brokers": part("rocketmq_broker_", "ariane_broker_", "ariane_delay_"),
    "runtime": part(RUNTIME),
    "exporter": {**PORTS["exporter"], **POLL_METRICS},
    "broker": BROKER_METRICS,
    "opentelemetry": OPENTELEMETRY_METRICS,
    "nameserver": NAME_SERVER_METRICS,
    "proxy": PROXY_METRICS,
    "pipeline": {**PORTS["pipeline"], **PIPELINE_METRICS},
    "collector": {**PORTS["collector"], **COLLECTOR_METRICS},
}


def test_the_tables_are_generated_from_the_declarations() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == update_page(page, TABLES), f"run: python tests/style/{Path(__file__).name}"


def test_every_metric_is_in_one_table() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (?:gauge|counter|histogram) \|", PAGE.read_text(encoding="utf-8"), re.M)
    others = (
        *PORTS.values(),
        POLL_METRICS,
        BROKER_METRICS,
        OPENTELEMETRY_METRICS,
        NAME_SERVER_METRICS,
        PROXY_METRICS,
        PIPELINE_METRICS,
        COLLECTOR_METRICS,
    )
    declared = [metric.name for table in (EXPORTER_METRICS, *others) for metric in table]
    assert sorted(listed) == sorted(declared)
    assert len(set(declared)) == len(declared)


@pytest.mark.parametrize("name", TABLES)
def test_names_follow_the_conventions(name: str) -> None:
    for metric in TABLES[name]:
        assert re.fullmatch(r"(rocketmq|ariane)_[a-z0-9_]+", metric.name)
        assert metric.help.endswith(".")
        if metric.name.startswith("ariane_"):
            assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
            assert not metric.name.endswith(("_ms", "_kb", "_mb")), metric.name


if __name__ == "__main__":
    PAGE.write_text(update_page(PAGE.read_text(encoding="utf-8"), TABLES), encoding="utf-8")

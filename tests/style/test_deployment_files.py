"""Alert rules and dashboards refer to metrics and labels that the code declares."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from test_metrics_page import TABLES

from ariane.metrics.serving import process_metrics

ROOT = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARDS = sorted((ROOT / "grafana").glob("*.json"))
ALERTS = yaml.safe_load((ROOT / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]

TARGET_LABELS = {"job", "instance"}  # Prometheus adds them
KEYWORDS = {"and", "or", "unless", "offset", "bool"}
GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
FUNCTIONS = {
    "sum", "max", "min", "avg", "count", "topk", "rate", "increase", "delta", "deriv", "time", "vector",
    "histogram_quantile", "label_values",
}  # fmt: skip


def declared() -> dict[str, set[str]]:
    """Return the labels of every series by its name."""
    found: dict[str, set[str]] = {"up": set(TARGET_LABELS)}
    for table in TABLES.values():
        for metric in table:
            labels = {*metric.labels, *TARGET_LABELS}
            if metric.kind == "histogram":
                found |= {f"{metric.name}_{part}": labels for part in ("sum", "count")}
                found[f"{metric.name}_bucket"] = labels | {"le"}
            else:
                found[metric.name] = labels
    for line in process_metrics.text(is_openmetrics=False).splitlines():
        if not line.startswith("#"):
            found[re.split(r"[{ ]", line)[0]] = set(TARGET_LABELS)
    return found


DECLARED = declared()


def faults(expression: str) -> list[str]:
    """Return the unknown metrics, labels and functions of a PromQL expression."""
    found, labels_of_all, grouped = [], set[str](), set[str]()
    text = re.sub(r"\[[^\]]*\]", "", expression)  # ranges
    tokens = re.findall(r'"(?:[^"\\]|\\.)*"|[A-Za-z_:$][\w:$]*|[0-9][\w.]*|=~|!~|!=|[^\s]', text)
    at = 0
    while at < len(tokens):
        token, following = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
        at += 1
        if token in GROUPING and following == "(":
            end = tokens.index(")", at)
            grouped |= set(tokens[at + 1 : end]) - {","}
            at = end + 1
        elif not re.match(r"[A-Za-z_]", token) or token in KEYWORDS:
            continue
        elif token in FUNCTIONS:
            if token == "label_values":
                grouped.add(tokens[-2])
                tokens = tokens[:-3]  # the label, and the comma before it
        elif following == "(":
            found.append(f"function {token}")
        elif token not in DECLARED:
            found.append(f"metric {token}")
        else:
            labels_of_all |= DECLARED[token]
            if following == "{":
                end = tokens.index("}", at)
                followed = zip(tokens[at:end], tokens[at + 1 : end], strict=False)
                used = {one for one, sign in followed if sign in ("=", "=~", "!=", "!~")}
                found += [f"label {label} of {token}" for label in sorted(used - DECLARED[token])]
                at = end + 1
    return found + [f"label {label}" for label in sorted(grouped - labels_of_all)]


def test_the_check_finds_mistakes() -> None:
    assert faults('sum by (group) (ariane_group_lag_messages{cluster="c"}) > 0 and on (group) up == 1') == []
    assert faults("ariane_group_lag") == ["metric ariane_group_lag"]
    assert faults("sum by (queue) (ariane_group_lag_messages)") == ["label queue"]
    assert faults('ariane_broker_up{topic=~"a"}') == ["label topic of ariane_broker_up"]
    assert faults("rates(ariane_broker_up[5m])") == ["function rates"]
    assert faults("rate(ariane_broker_put_duration_seconds[5m])") == ["metric ariane_broker_put_duration_seconds"]
    assert faults("label_values(ariane_broker_up, topic)") == ["label topic"]


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_alerts(rule: dict[str, Any]) -> None:
    assert faults(rule["expr"]) == []
    assert rule["labels"]["severity"] in ("warning", "critical")
    shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    known = {label for name in re.findall(r"[a-z_]\w*", rule["expr"]) for label in DECLARED.get(name, ())}
    assert shown <= known


def test_alerts_have_different_names_and_cover_the_usual_faults() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    assert {
        "BrokerDown", "DiskNearlyFull", "SendsFailing", "SlaveBehind", "DelayedMessagesOverdue", "GroupLagGrowing",
        "GroupWithoutConsumers", "DeadLettersArriving", "PipelineStale",
    } <= set(names)  # fmt: skip


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from dashboard["panels"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards(path: Path) -> None:
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
    queries += [one["definition"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    assert len(queries) >= 6
    assert {query: found for query in queries if (found := faults(query))} == {}
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    used = {name for query in queries for name in re.findall(r"\$(\w+)", query)}
    assert used - {"__rate_interval"} <= variables
    for panel in panels(dashboard):
        for target in panel["targets"]:
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            names = re.findall(r"[a-z_]\w*", target["expr"])
            assert shown <= {label for name in names for label in DECLARED.get(name, ())}, target["expr"]


def test_dashboards_have_ids_and_do_not_overlap() -> None:
    dashboards = [json.loads(path.read_text(encoding="utf-8")) for path in DASHBOARDS]
    assert [path.stem for path in DASHBOARDS] == ["broker", "cluster", "groups", "pipeline", "topics"]
    assert len({one["uid"] for one in dashboards}) == len(dashboards)
    for dashboard in dashboards:
        ids = [panel["id"] for panel in panels(dashboard)]
        assert len(set(ids)) == len(ids)
        cells = [
            (column, row)
            for panel in panels(dashboard)
            for column in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for row in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert max(column for column, _ in cells) < 24


def test_the_example_of_prometheus_loads_the_alerts() -> None:
    config = yaml.safe_load((ROOT / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    assert config["rule_files"] == ["alerts.yml"]
    jobs = [job["job_name"] for job in config["scrape_configs"]]
    assert jobs == ["ariane-exporter", "ariane-broker", "ariane-namesrv", "ariane-proxy", "ariane-pipeline"]

"""Compares answers: what a recorded answer of rocketmq-dashboard and ours differ in, apart from addresses, ids and times.

    compare(recorded, ours) ─→ {"type .body.data[].count: int → NoneType", "missing .body.data[].x", …}

Paths name members; elements of lists share the path `[]`. Lists are compared without their order, because Java's sets have none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

# Members whose values depend on the run: times, durations, positions, connections. Only their types are compared.
VOLATILE = re.compile(
    r"(?i)(time(stamp)?$|timestamp|^date|costTime|subVersion|requestId|commitLogOffset|bornHost|clientAddr|^msgId$|UNIQ_KEY"
    r"|offSetMsgId|ORIGIN_MESSAGE_ID|transactionId|preparedTransactionOffset|taskId|offsetMsgId|errMsg|remark|exceptionDesc"
    r"|Mills$|consumeTps|TPS$|RT$|jstack)"
)
# Members that identify an element of a list.
IDENTITY = (
    "group", "topic", "topicName", "consumerGroup", "subscriptionGroup", "clientId", "traceType", "queueId", "queueOffset",
    "brokerName",
)  # fmt: skip
RUNTIME_TABLES = ("brokerServer",)  # broker → id → runtime value: loads, sizes and free space of the machine
ADDRESS = re.compile(r"\b\d+\.\d+\.\d+\.\d+:\d+\b")
MESSAGE_ID = re.compile(r"\b[0-9A-F]{32}\b")
PATH = re.compile(r"(?:/[\w.-]+){2,}")
DATE = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.+]+")
CHART_POINT = re.compile(r"\d{13}(,[\d.]*)+")
CHART_SUM = re.compile(r"(?<=\w),\d+\Z")
LONG_NUMBER = re.compile(r"\b\d{13}\b")
STAND_INS = {
    CHART_POINT: "POINT", CHART_SUM: ",SUM", ADDRESS: "ADDR", MESSAGE_ID: "ID", PATH: "PATH", DATE: "DATE", LONG_NUMBER: "MS",
}  # fmt: skip


def compare(recorded: Mapping[str, Any], ours: Mapping[str, Any], *, allow_extra: bool) -> set[str]:
    """Return the differences of two answers.

    Args:
        recorded: Answer of rocketmq-dashboard.
        ours: Our answer to the same request.
        allow_extra: Accept members that only our answer has: those that a later version of the dashboard added.
    """
    found: set[str] = set()
    left, right = dict(recorded), dict(ours)
    for answer in (left, right):
        answer["contentType"] = (answer.get("contentType") or "").partition(";")[0]
    _compare("", normalize(left), normalize(right), found, allow_extra)
    return found


def normalize(value: Any, name: str = "") -> Any:
    """Return a value with its addresses, ids and times replaced; volatile ones by their type."""
    if isinstance(value, Mapping):
        members = {_text(str(key)): normalize(item, str(key)) for key, item in value.items()}
        if name in RUNTIME_TABLES:
            return {key: {number: _kinds(table) for number, table in tables.items()} for key, tables in members.items()}
        if name == "messageQueue":
            members["queueId"] = "any"  # producers choose it
        return members
    if isinstance(value, list):
        return sorted((normalize(item, name) for item in value), key=_identity)
    if VOLATILE.search(name) and value is not None:
        return _kind(value)
    return _text(value) if isinstance(value, str) else value


def _kinds(table: Any) -> Any:
    return {name: _kind(value) for name, value in table.items()} if isinstance(table, dict) else table


def _identity(item: Any) -> str:
    """Return the key by which elements of two lists are matched."""
    if not isinstance(item, dict):
        return str(item)
    return json.dumps([item.get(name) for name in IDENTITY])


def _text(text: str) -> str:
    for pattern, stand_in in STAND_INS.items():
        text = pattern.sub(stand_in, text)
    return text


def _kind(value: Any) -> str:
    """Return the type as JSON knows it: Java prints a rate as 0 where we print 0.5."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return {str: "text", list: "list", dict: "object"}.get(type(value), "null")


def _compare(path: str, left: Any, right: Any, found: set[str], allow_extra: bool) -> None:
    if _kind(left) != _kind(right):
        found.add(f"type {path}: {_kind(left)} → {_kind(right)}")
    elif isinstance(left, dict):
        found.update(f"missing {path}.{name}" for name in left.keys() - right.keys())
        if not allow_extra:
            found.update(f"extra {path}.{name}" for name in right.keys() - left.keys())
        for name in left.keys() & right.keys():
            _compare(f"{path}.{name}", left[name], right[name], found, allow_extra)
    elif isinstance(left, list):
        _compare_lists(path, left, right, found, allow_extra)
    elif left != right:
        found.add(f"value {path}: {left} → {right}")


def _compare_lists(path: str, left: list[Any], right: list[Any], found: set[str], allow_extra: bool) -> None:
    if _are_texts(left) and _are_texts(right):
        found.update(f"missing {path}[]: {text}" for text in set(left) - set(right))
        found.update(f"extra {path}[]: {text}" for text in set(right) - set(left))
        return
    if len(left) != len(right):
        found.add(f"length {path}: {len(left)} → {len(right)}")
    for one, other in zip(left, right, strict=False):
        _compare(f"{path}[]", one, other, found, allow_extra)


def _are_texts(items: Iterable[Any]) -> bool:
    return all(isinstance(item, str) for item in items)

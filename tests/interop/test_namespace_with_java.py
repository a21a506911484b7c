"""Namespaces: two Java applications with the same topic and group names in one cluster, isolated by namespace."""

from __future__ import annotations

from pathlib import Path

from interop_servers import consume, produce, pull_all

from ariane.testing import LocalCluster


def bodies(found: list[dict[str, object]]) -> list[object]:
    return sorted(item["body"] for item in found)  # type: ignore[type-var]


def test_namespaces_isolate_applications(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        produce(servers.namesrv, 3, "namespace=one", "size=20")
        produce(servers.namesrv, 5, "namespace=two", "size=30")
        first = consume(servers.namesrv, "G", "*", 3, "namespace=one")
        second = consume(servers.namesrv, "G", "*", 5, "namespace=two")
        assert bodies(first) == bodies(pull_all(servers.namesrv, "one%T"))
        assert bodies(second) == bodies(pull_all(servers.namesrv, "two%T"))
        assert {item["topic"] for item in (*first, *second)} == {"T"}  # shown without it
        assert (len(first), len(second)) == (3, 5)


def test_dead_letters_stay_in_their_namespace(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        produce(servers.namesrv, 1, "namespace=one")
        consume(servers.namesrv, "G", "*", 1, "namespace=one", "fail", "level=-1")
        assert len(pull_all(servers.namesrv, "%DLQ%one%G")) == 1

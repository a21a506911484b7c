"""Java programs and servers that the interop tests share, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from ariane.testing import java

# Releases for tests of our clients at Java servers. Our broker responds as 4.9.4 does, and all tests of our clients use our broker.
RELEASES = (
    pytest.param(java.V4, marks=pytest.mark.long("tests/interop/test_differential.py::test_responses_match_java")),
    pytest.param(java.V5),
)


class JavaServers(NamedTuple):
    """A name server and a broker of a release, and the clients of the same release."""

    java: java.JavaRelease
    name_server: str
    broker: str


JavaServersOf = Callable[[java.JavaRelease, bool], JavaServers]  # a release, and whether its servers accept TLS


def produce(namesrv: str, count: int, *options: str, topic: str = "T") -> list[dict[str, object]]:
    sent = java.events(java.run("ariane.peers.Produce", [namesrv, topic, "P", str(count), *options]))
    assert [item["status"] for item in sent] == ["SEND_OK"] * count
    return sent


def consume(namesrv: str, group: str, expression: str, count: int, *options: str) -> list[dict[str, object]]:
    args = [namesrv, "T", group, expression, str(count), "60", *options]
    return java.events(java.run("ariane.peers.Consume", args))


def pull_all(namesrv: str, topic: str) -> list[dict[str, object]]:
    return java.events(java.run("ariane.peers.PullAll", [namesrv, topic]))


def mqadmin(namesrv: str, *lines: str, release: java.JavaRelease = java.V4) -> list[str]:
    """Run these mqadmin command lines in one JVM and return the output of each."""
    outputs, current = [], []
    for line in release.run("ariane.peers.Admin", [namesrv, *lines]):
        if line == f"#### {len(outputs) + 1}":
            outputs.append("\n".join(current).strip())
            current = []
        else:
            current.append(line)
    assert len(outputs) == len(lines), current  # a command line that mqadmin does not understand ends the JVM
    return outputs

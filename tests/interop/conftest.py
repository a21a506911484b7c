"""Interop tests need the real Java peers; without them they are skipped with the reason."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop_servers import JavaServers, JavaServersOf

from ariane.testing import java

HERE = Path(__file__).parent

# Filters and recalls are off by default, and rounds of checks are a minute apart. A 5.x broker records the end of a transaction up
# to 3 s later, and checks it once more before that.
BROKER = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "transactionCheckInterval": "1000",
    "transactionOpBatchInterval": "100",
    "transactionTimeOut": "1000",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this directory is an interop test."""
    interop_items = [item for item in items if HERE in Path(item.fspath).parents]
    reason = java.available() if interop_items else None
    for item in interop_items:
        item.add_marker(pytest.mark.interop)
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"Java peers: {reason}"))


@pytest.fixture(scope="module")
def java_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaServersOf]:
    """Return the name server and the broker of a release, which the tests of a module share: each uses its own topics.

    They stop after the module: idle brokers take more CPU time in the rest of a run than starting them again.
    """
    started: dict[str, JavaServers] = {}

    def servers(release: java.JavaRelease, tls: bool) -> JavaServers:
        if release.version not in started:
            if reason := release.available():
                pytest.skip(f"Java peers: {reason}")
            home = tmp_path_factory.mktemp("java")
            jvm = release.quick_start() if tls else None
            ns = stack.enter_context(release.name_server(home / "ns", jvm_args=jvm))
            broker = stack.enter_context(release.broker(home / "b", ns.addr, properties=BROKER, jvm_args=jvm))
            stack.callback(broker.process.kill)  # what it would store when it stops is of no use
            started[release.version] = JavaServers(release, ns.addr, broker.addr)
        return started[release.version]

    with contextlib.ExitStack() as stack:
        yield servers

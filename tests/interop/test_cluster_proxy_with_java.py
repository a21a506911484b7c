"""`ariane proxy` in front of brokers of 5.3.3, of 4.9.4 and of ours: the official Python client sends, receives, commits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_official_5x_clients import client_python, run_python

from ariane.client.pull_consumer import PullConsumer
from ariane.cluster.admin import Admin
from ariane.proxy.cluster.cluster_proxy import ClusterProxy
from ariane.proxy.cluster.proxy_config import ProxyConfig
from ariane.testing import LocalCluster, java

pytestmark = pytest.mark.interop

__all__ = ["client_python"]  # a fixture

CHECKS = {"transactionCheckInterval": 500, "transactionTimeOut": 500}


@contextlib.contextmanager
def proxy(name_server: str) -> Iterator[str]:
    """Run a proxy in a thread, and yield its address."""
    loop, stop, addresses = asyncio.new_event_loop(), asyncio.Event(), list[str]()
    started = threading.Event()

    async def run() -> None:
        async with ClusterProxy(ProxyConfig(grpc_server_port=0, namesrv_addr=name_server)) as running:
            addresses.append(running.addr)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        assert started.wait(60)
        yield addresses[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture(scope="module", params=["Ariane", "5.3.3"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("grpc", reason="the extra grpc is not installed")
    with contextlib.ExitStack() as stack:
        if request.param == "Ariane":
            settings = {"transaction_check_interval": 500, "transaction_time_out": 500}
            name_server = stack.enter_context(LocalCluster(**settings)).namesrv
        else:
            # Ends of transactions are recorded before the next check, which would commit once more.
            properties = {"recallMessageEnable": "true", "transactionOpBatchInterval": "50"}
            name_server = _java_servers(stack, java.V5, tmp_path_factory.mktemp("java"), **properties)
        asyncio.run(_create_topics(name_server))
        yield stack.enter_context(proxy(name_server))


def _java_servers(stack: contextlib.ExitStack, release: java.JavaRelease, home: Path, **properties: str) -> str:
    if reason := release.available():
        pytest.skip(f"Java peers: {reason}")
    names = stack.enter_context(release.name_server(home / "ns"))
    checks = {key: str(value) for key, value in CHECKS.items()}
    stack.enter_context(release.broker(home / "b", names.addr, properties={**checks, **properties}))
    return str(names.addr)


async def _create_topics(name_server: str) -> None:
    async with Admin(name_server) as admin:
        for topic in ("Mixed", "Transactions"):
            await admin.create_topic(topic, queues=4)


def test_python_sends_receives_and_recalls_each_kind_of_message(client_python: str, address: str) -> None:
    *sent, recalled = run_python(client_python, address, "produce", topic="Mixed")
    assert recalled["id"] == recalled["expected"]
    assert [bool(event["recall"]) for event in sent] == [False, False, True]
    received = run_python(client_python, address, "simple", topic="Mixed", group="simple", count=3)
    assert {event["body"]: event["id"] for event in received} == dict(
        zip(("normal", "ordered", "delayed"), (event["id"] for event in sent), strict=True)
    )


@pytest.mark.long(
    "tests/integration/test_cluster_proxy.py::test_a_message_that_is_visible_again_and_one_for_dead_letters",
    "tests/interop/test_cluster_proxy_with_java.py::test_python_sends_receives_and_recalls_each_kind_of_message",
)
def test_a_push_consumer_receives_what_it_has_refused_once_more(
    client_python: str, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    run_python(client_python, address, "produce", topic="Mixed")
    pushed = run_python(client_python, address, "push", topic="Mixed", group="push", count=3)
    assert {event["attempt"] for event in pushed} == {1, 2}
    assert "Could not renew" not in caplog.text  # the handles of retries are valid


@pytest.mark.long(
    "tests/integration/test_cluster_proxy.py::test_a_transaction_is_checked_at_the_client_and_committed_at_its_broker",
    "tests/interop/test_cluster_proxy_with_java.py::test_python_sends_receives_and_recalls_each_kind_of_message",
)
def test_transactions_are_committed_rolled_back_and_checked(client_python: str, address: str) -> None:
    (checked,) = run_python(client_python, address, "transactions", topic="Transactions")
    assert checked == {"event": "checked", "body": "checked"}
    received = run_python(client_python, address, "simple", topic="Transactions", group="transactions", count=2)
    assert sorted(event["body"] for event in received) == ["checked", "commit"]


@pytest.mark.long(
    "tests/integration/test_cluster_proxy.py::test_a_broker_without_pop_refuses_consumers_and_delays_with_a_reason",
    "tests/integration/test_cluster_proxy.py::test_a_transaction_is_checked_at_the_client_and_committed_at_its_broker",
)
def test_a_broker_of_4_9_4_takes_messages_and_transactions(client_python: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="the extra grpc is not installed")

    async def bodies(name_server: str) -> list[bytes]:
        async with PullConsumer(name_server) as consumer:
            pulled = [await consumer.pull(queue, 0) for queue in await consumer.queues_of("Transactions")]
        return sorted(message.body for result in pulled for message in result.messages)

    with contextlib.ExitStack() as stack:
        name_server = _java_servers(stack, java.V4, tmp_path)
        asyncio.run(_create_topics(name_server))
        with proxy(name_server) as address:
            (checked,) = run_python(client_python, address, "transactions", topic="Transactions")
        assert checked == {"event": "checked", "body": "checked"}
        assert asyncio.run(bodies(name_server)) == [b"checked", b"commit"]

"""What the interop tests share: our servers in a thread, and the Java programs by name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from ariane.broker.broker import Broker
from ariane.broker.config import BrokerConfig
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.testing import java


@contextmanager
def ariane_servers(home: Path, **settings: object) -> Iterator[tuple[str, str]]:
    """Our name server and broker in a thread with a loop of its own: their addresses."""
    config = {"broker_name": "broker-a", "broker_ip1": "127.0.0.1", "listen_port": 0, **settings}
    started: Future[tuple[str, str]] = Future()
    stop: Callable[[], None] | None = None

    async def serve() -> None:
        nonlocal stop
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        stop = lambda: loop.call_soon_threadsafe(stopped.set)  # noqa: E731 - known only once the loop runs
        async with AsyncExitStack() as stack:
            kv = str(home / "kvConfig.json")
            name_server = await stack.enter_async_context(
                NameServer(NameServerConfig(listen_port=0, kv_config_path=kv))
            )
            namesrv = f"127.0.0.1:{name_server.port}"
            broker = await stack.enter_async_context(
                Broker(BrokerConfig(store_path_root_dir=str(home / "store"), namesrv_addr=namesrv, **config))  # type: ignore[arg-type]
            )
            started.set_result((namesrv, broker.addr))
            await stopped.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    thread = threading.Thread(target=run, name="ariane servers")
    thread.start()
    try:
        yield started.result(60)
    finally:
        if stop is not None:
            stop()
        thread.join(60)
        assert not thread.is_alive()


def produce(namesrv: str, count: int, *options: str, topic: str = "T") -> list[dict[str, object]]:
    sent = java.events(java.run("ariane.peers.Produce", [namesrv, topic, "P", str(count), *options]))
    assert [one["status"] for one in sent] == ["SEND_OK"] * count
    return sent


def consume(namesrv: str, group: str, expression: str, count: int, *options: str) -> list[dict[str, object]]:
    args = [namesrv, "T", group, expression, str(count), "60", *options]
    return java.events(java.run("ariane.peers.Consume", args))


def pull_all(namesrv: str, topic: str) -> list[dict[str, object]]:
    return java.events(java.run("ariane.peers.PullAll", [namesrv, topic]))

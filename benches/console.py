"""The web console at a cluster with many consumer groups and topics: lists, open tabs, and brokers that do not respond.

    python benches/console.py [--groups 10000] [--topics 5000] [--queues 2] [--tabs 50] [--seconds 60] [--json]

A name server, two brokers and a console of ours, each in a process of its own. Each group has offsets in a topic and lags.
  first data    from the first request until topics and groups are listed, and until their rates are
  ages          the oldest lags, rates, clients and ages that a list shows during a minute or so, and meanwhile the CPU time of the
                console and of the broker
  lists         server time of lists that are searched and sorted, as JSON and as pages
  one tab, tabs CPU time of the console with clients that load a page as app.js does: every 5 s; "poll" is the part of one client,
                almost all of it the background poll of the cluster
  hanging, dead the slowest of several pages after the second broker was stopped (SIGSTOP), and after it was killed
Times on a machine with other work are upper bounds; compare the CPU times.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

import scrape
import servers
from ariane.model.topic import AUTO_CREATE_TOPIC, PERM_READ, PERM_WRITE
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import CreateTopic
from ariane.testing import java

CREATING = 64  # topics in flight
LOAD_S = 600  # until the console has polled the cluster
REFRESH_S = 5.0  # of app.js
LISTS = {
    "topics_searched": "/topics?q=7&sort=messages&order=desc",
    "topics_last_page": "/topics?sort=tpsIn&page=50",
    "groups_by_lag": "/groups?sort=lag&order=desc",
    "groups_searched": "/groups?q=99&sort=tps&order=desc",
}
PAGES = ("/", "/cluster", "/topics", "/brokers/broker-a", "/brokers/broker-b", "/brokers/broker-a/configuration")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--topics", type=int, default=5_000)
    parser.add_argument("--queues", type=int, default=2)
    parser.add_argument("--tabs", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60, help="duration of each measurement of CPU time")
    parser.add_argument("--json", action="store_true", help="print the result as the last line")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ariane-bench-") as place:
        result = measure(Path(place), args)
    for name, value in result.items():
        print(f"{name:40} {value if isinstance(value, str) else f'{value:14,.3f}'}")
    if args.json:
        print(json.dumps(result))


def measure(home: Path, args: argparse.Namespace) -> dict[str, float | str]:
    port = java.free_port()
    conf = home / "namesrv.conf"
    conf.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\nkvConfigPath={home}/kv.json\n")
    namesrv, properties = f"127.0.0.1:{port}", {"bindAddress": "127.0.0.1"}
    for name in ("a", "b"):
        (home / name).mkdir()
    with (
        scrape.program("namesrv", "-c", str(conf)),
        servers.started("ariane", namesrv, home / "a", properties) as first,
        servers.started("ariane", namesrv, home / "b", {**properties, "brokerName": "broker-b"}) as second,
    ):
        began = time.perf_counter()
        asyncio.run(create_topics(first.addr, args))
        asyncio.run(scrape.fill(first.addr, args))
        print(f"filled in {time.perf_counter() - began:.1f} s", file=sys.stderr)
        with console(namesrv, home / "console") as (url, pid):
            return asyncio.run(measure_console(url, pid, (first.pid, second.pid), args))


async def create_topics(addr: str, args: argparse.Namespace) -> None:
    limit = asyncio.Semaphore(CREATING)
    async with ConnectionPool() as peers:

        async def create(number: int) -> None:
            perm = PERM_READ | PERM_WRITE
            header = CreateTopic(scrape.topic_name(number), AUTO_CREATE_TOPIC, args.queues, args.queues, perm)
            async with limit:
                await peers.request_ok(addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_ms=scrape.TIMEOUT_MS)

        await asyncio.gather(*map(create, range(args.topics)))


@contextlib.contextmanager
def console(namesrv: str, data: Path) -> Iterator[tuple[str, int]]:
    """A console, its address and process id."""
    port = java.free_port()
    # A home of its own: the overview also reads the tables of a pipeline there.
    directories = ["--home", str(data), "--data", str(data)]
    command = [sys.executable, "-m", "ariane.cli", "console", "-n", namesrv, "--port", str(port), *directories]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{url}/static/icon.svg")
                break
            if process.poll() is not None:
                raise SystemExit("the console did not start")
            time.sleep(0.05)
        yield url, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def measure_console(
    url: str, pid: int, brokers: tuple[int, int], args: argparse.Namespace
) -> dict[str, float | str]:
    first, second = brokers
    limits = httpx.Limits(max_connections=args.tabs, max_keepalive_connections=args.tabs)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        result: dict[str, float | str] = {**await first_data(client)}
        result |= await column_ages(client, pid, first, args.seconds)
        result["peak_rss_mib"] = servers.memory_mib(pid)["VmHWM"]
        for name, path in LISTS.items():
            for kind, prefix in (("api", "/api/v1"), ("page", "")):
                times = [await seconds(client, prefix + path) for _ in range(9)]
                result[f"{name}_{kind}_ms"] = statistics.median(times) * 1000
                result[f"{name}_{kind}_max_ms"] = max(times) * 1000
        result["one_tab_cpu_percent"] = await cpu_percent(client, pid, 1, args.seconds)
        result["all_tabs_cpu_percent"] = await cpu_percent(client, pid, args.tabs, args.seconds)
        await seconds(client, "/cluster")
        os.kill(second, signal.SIGSTOP)
        try:
            result |= await slowest_page(client, "hanging")
            result |= await slowest_page(client, "hanging_later")
        finally:
            os.kill(second, signal.SIGCONT)
        await asyncio.sleep(2 * REFRESH_S)
        await seconds(client, "/cluster")
        os.kill(second, signal.SIGKILL)
        result |= await slowest_page(client, "dead")
        result["peak_rss_at_end_mib"] = servers.memory_mib(pid)["VmHWM"]
        return result


async def first_data(client: httpx.AsyncClient) -> dict[str, float]:
    began = time.perf_counter()
    first_page = await seconds(client, "/")
    while (view := (await client.get("/api/v1/overview")).json())["groups"] is None:
        check_time(began)
        await asyncio.sleep(0.1)
    listed = time.perf_counter() - began
    # Rates and ages arrive with the first round of details.
    while not view["lagging"] or view["lagging"][0]["tps"] is None:
        check_time(began)
        await asyncio.sleep(1)
        view = (await client.get("/api/v1/overview")).json()
    return {
        "first_page_s": first_page,
        "first_lists_after_s": listed,
        "first_rates_after_s": time.perf_counter() - began,
        "topics": view["topics"],
        "groups": view["groups"],
    }


async def column_ages(client: httpx.AsyncClient, pid: int, broker: int, duration_s: float) -> dict[str, float]:
    """Return the age of the oldest columns of a list that is looked at once a second, and the CPU time meanwhile."""
    oldest: dict[str, float] = {}
    before, began = (servers.cpu_s(pid), servers.cpu_s(broker)), time.perf_counter()
    while (elapsed := time.perf_counter() - began) < duration_s:
        times = (await client.get("/api/v1/groups?sort=lag")).json()["times"]
        for part in times:
            if part["asOfMs"] is None:
                continue  # not polled yet
            age_s = time.time() - part["asOfMs"] / 1000
            oldest[part["columns"]] = max(age_s, oldest.get(part["columns"], 0.0))
        await asyncio.sleep(1)
    ages = {f"{columns}_oldest_s": age_s for columns, age_s in oldest.items()}
    cpu_s = servers.cpu_s(pid) - before[0], servers.cpu_s(broker) - before[1]
    return ages | {
        "listing_cpu_percent": 100 * cpu_s[0] / elapsed,
        "listing_broker_cpu_percent": 100 * cpu_s[1] / elapsed,
    }


def check_time(began: float) -> None:
    if time.perf_counter() - began > LOAD_S:
        raise SystemExit(f"the console has not polled the cluster within {LOAD_S} s")


async def seconds(client: httpx.AsyncClient, path: str) -> float:
    """Return the duration of a request. A page of a broker that does not respond may be an error page."""
    began = time.perf_counter()
    response = await client.get(path, headers={"HX-Request": "true"})
    if response.status_code not in (200, 502, 504):
        raise SystemExit(f"{path}: {response.status_code} {response.text[:200]}")
    return time.perf_counter() - began


async def slowest_page(client: httpx.AsyncClient, name: str) -> dict[str, float | str]:
    """Return the duration of the slowest page, and its path, which explains the figure."""
    duration_s, path = max([(await seconds(client, path), path) for path in PAGES])
    return {f"{name}_slowest_page_s": duration_s, f"{name}_slowest_page": path}


async def cpu_percent(client: httpx.AsyncClient, pid: int, tabs: int, duration_s: float) -> float:
    """Return the CPU time of the console while `tabs` clients refresh a list of groups, in percent of a core."""

    async def refresh(number: int) -> None:
        await asyncio.sleep(REFRESH_S * number / tabs)
        while True:
            began = time.perf_counter()
            await seconds(client, f"/groups?sort=lag&order=desc&page={number % 10 + 1}")
            await asyncio.sleep(max(0.0, REFRESH_S - (time.perf_counter() - began)))

    refreshing = [asyncio.create_task(refresh(number)) for number in range(tabs)]
    await asyncio.sleep(REFRESH_S)
    before, began = servers.cpu_s(pid), time.perf_counter()
    await asyncio.wait(refreshing, timeout=duration_s)
    percent = 100 * (servers.cpu_s(pid) - before) / (time.perf_counter() - began)
    for task in refreshing:
        if task.done():
            task.result()  # raises what ended it
        task.cancel()
    await asyncio.gather(*refreshing, return_exceptions=True)
    return percent


if __name__ == "__main__":
    main()

"""What a send waits for with SYNC_FLUSH in a broker set whose disks are not equally fast.

    PYTHONPATH=src:tests python benches/failover_flush.py [SECONDS [DELAY_MS]]

Three brokers and an etcd of three members on one machine. Each fsync of one broker takes DELAY_MS longer: of none, a follower,
the master. Prints sends per second, and latencies of 1 and of 16 senders.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from ariane import Producer
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import CreateTopic
from ariane.protocol.requests.failover import MemberRequest
from etcd_cluster import EtcdCluster
from failover_processes import BrokerSet, broker_set

DELAY = "SLOW_FSYNC_MS"  # environment of a broker
# Imported by each Python process that has its directory in PYTHONPATH.
SLOW_DISK = f"""
import os, time
if delay_ms := float(os.environ.get("{DELAY}", "0")):
    fsync = os.fsync
    def slow_fsync(descriptor):
        time.sleep(delay_ms / 1000)
        fsync(descriptor)
    os.fsync = slow_fsync
"""
TOPIC = "Flush"
AWAY_S = 7.0  # a member that was started again leaves the in-sync set, and returns after 5 s


async def measure(brokers: BrokerSet, namesrv: str, senders: int, seconds: float) -> str:
    times: list[float] = []

    async def send(producer: Producer[bytes]) -> None:
        while (start := time.monotonic()) < end:
            await producer.send(TOPIC, bytes(200))
            times.append(time.monotonic() - start)

    async with Producer(namesrv, "P") as producer:
        end = time.monotonic() + AWAY_S
        while time.monotonic() < end:
            await producer.send(TOPIC, b"first")
        await brokers.complete(3)
        end = time.monotonic() + seconds
        await asyncio.gather(*(send(producer) for _ in range(senders)))
    members = (await brokers.describe("a"))["failoverSet"]
    cuts = statistics.quantiles(times, n=100)
    rate = f"{senders:2} senders: {len(times) / seconds:6.0f} sends/s"
    return f"{rate}, p50 {1000 * cuts[49]:.1f} ms, p99 {1000 * cuts[98]:.1f} ms; in sync at the end: {members}"


async def slow_down(brokers: BrokerSet, name: str, delay_ms: float) -> None:
    """Start a member again with a slow disk."""
    member = brokers.members[name]
    member.stop()
    os.environ[DELAY] = str(delay_ms)
    member.start()
    del os.environ[DELAY]


async def lead(brokers: BrokerSet, name: str) -> None:
    """Hand the lease over to a member."""
    while (master := await brokers.complete(3)) != name:
        request = MemberRequest("handover", name, 0)
        await brokers.peers.request(brokers.members[master].addr, RequestCode.MEMBER_REQUEST, request)
        await asyncio.sleep(0.5)


async def run(home: Path, urls: list[str], seconds: float, delay_ms: float) -> None:
    for number, slow in enumerate(("none", "a follower", "the master")):
        settings = {"minInSyncReplicas": 2, "flushDiskType": "SYNC_FLUSH"}
        async with broker_set(home / f"set{number}", urls, **settings) as (brokers, namesrv):
            if slow != "none":
                await slow_down(brokers, "a" if slow == "the master" else "b", delay_ms)
            await lead(brokers, "a")
            header = CreateTopic(TOPIC, "TBW102", 4, 4, 6, "SINGLE_TAG", 0, order=False)
            await brokers.peers.request_ok(brokers.members["a"].addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            for senders in (1, 16):
                print(f"slow disk: {slow:10} {await measure(brokers, namesrv, senders, seconds)}", flush=True)


def main() -> None:
    seconds, delay_ms = (float(value) for value in (*sys.argv[1:], *("8", "20")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory(prefix="flush-") as directory:
        home = Path(directory)
        (home / "slow").mkdir()
        (home / "slow" / "sitecustomize.py").write_text(SLOW_DISK)
        os.environ["PYTHONPATH"] = f"{home / 'slow'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        etcd = EtcdCluster(home)
        etcd.start()
        try:
            asyncio.run(run(home, etcd.urls, seconds, delay_ms))
        finally:
            etcd.stop()


if __name__ == "__main__":
    main()

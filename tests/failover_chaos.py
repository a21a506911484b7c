"""Random faults at three real brokers with failover, under load: `python tests/failover_chaos.py SEED MINUTES`.

Prints each fault, and at the end how many messages were acknowledged; fails if one of them, or one that was read, is not in the log
of the last master at its position, or if the logs of the members differ. Odd seeds run with SYNC_FLUSH. etcd has to be installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "integration"))

from test_broker_set_failover import Proxies, new_load

from ariane.errors import ArianeError
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.failover import MemberRequest
from etcd_cluster import EtcdCluster
from failover_processes import BrokerSet, broker_set

FAULTS = ("kill", "kill", "stop", "pause", "pause", "cut", "cut", "outage", "switch")
NAMES = ("a", "b", "c")


class Chaos:
    """Faults at the members of one set; `heal` ends them."""

    def __init__(self, brokers: BrokerSet, ways: dict[str, Proxies], rng: random.Random) -> None:
        self.count = 0
        self._brokers, self._ways, self._rng = brokers, ways, rng
        self._heals: list[Callable[[], None]] = []

    async def strike(self, name: str) -> str:
        """Begin a fault at a member, and return its kind."""
        kind, member = self._rng.choice(FAULTS), self._brokers.members[name]
        self.count += 1
        if kind == "kill":
            member.kill()
            self._heals.append(member.start)
        elif kind == "stop":
            await asyncio.to_thread(member.stop)
            self._heals.append(member.start)
        elif kind == "pause":
            member.signal(signal.SIGSTOP)
            self._heals.append(lambda: member.signal(signal.SIGCONT))
        elif kind == "switch":
            request = MemberRequest("handover", self._rng.choice(NAMES), 0)
            with contextlib.suppress(ArianeError):
                await self._brokers.peers.request(member.addr, RequestCode.MEMBER_REQUEST, request, timeout_ms=1000)
        else:
            for way in self._ways.values() if kind == "outage" else (self._ways[name],):
                way.close()
                self._heals.append(way.open)
        return kind

    async def heal(self) -> None:
        """End all faults."""
        for heal in self._heals:
            heal()
            await asyncio.sleep(self._rng.choice((0, 0.5)))
        self._heals.clear()
        await self._brokers.complete(len(NAMES))


async def run(seed: int, minutes: float, home: Path, urls: list[str]) -> None:
    rng, end = random.Random(seed), time.monotonic() + 60 * minutes
    async with contextlib.AsyncExitStack() as stack:
        ways = {name: await stack.enter_async_context(Proxies(urls)) for name in NAMES}
        flush = {"flushDiskType": "SYNC_FLUSH"} if seed % 2 else {}
        endpoints = {name: way.urls for name, way in ways.items()}
        brokers, namesrv = await stack.enter_async_context(
            broker_set(home / "set", endpoints, minInSyncReplicas=2, slaveTimeout=2000, **flush)
        )
        load, chaos = await new_load(brokers, namesrv), Chaos(brokers, ways, rng)
        async with load.running():
            while time.monotonic() < end:
                await load.sent(rng.randint(1, 150))
                victims = rng.sample(NAMES, rng.choice((1, 1, 1, 2)))
                if rng.random() < 0.7:
                    with contextlib.suppress(TimeoutError):
                        victims[0] = await brokers.master(limit_s=3)
                for name in dict.fromkeys(victims):
                    kind = await chaos.strike(name)
                    print(
                        f"{time.strftime('%H:%M:%S')} {kind} {name}: {len(load.acknowledged)} acknowledged", flush=True
                    )
                    await asyncio.sleep(rng.choice((0, 0, 0.3, 1)))
                await asyncio.sleep(rng.choice((0.2, 1, 3, 6, 9)))
                await chaos.heal()
        messages = await load.check()
        print(
            f"seed {seed}: {chaos.count} faults, {len(load.acknowledged)} acknowledged, 0 lost, {load.failed} failed sends,"
            f" {len(messages)} in the log, {load.longest_s:.1f} s without an acknowledgement at most"
        )


def main() -> None:
    seed, minutes = int(sys.argv[1]), float(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="failover-") as directory:
        home = Path(directory)
        etcd = EtcdCluster(home)
        etcd.start()
        try:
            asyncio.run(run(seed, minutes, home, etcd.urls))
        finally:
            etcd.stop()


if __name__ == "__main__":
    main()

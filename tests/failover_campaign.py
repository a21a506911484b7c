"""Random faults of all kinds at a broker set on hosts of its own: `python tests/failover_campaign.py SEED MINUTES [TTL [FIGURES]]`.

Four senders send batches all the time, a consumer receives, and Java's producer and consumer do the same where Java is installed.
Rounds of one to six overlapping faults; after each the set has to be complete again. At the end the stores of all three brokers are
read: everything acknowledged is in each of them at one position, and was received. Odd seeds run with SYNC_FLUSH. Writes a line of
JSON for each round and one for the result into FIGURES. It needs root, etcd and /dev/net/tun. If something is wrong, stores and
logs are copied to the directory `campaign-SEED` of the system's temporary files.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from ariane import Message, Producer, PushConsumer, ReceivedMessage, SendStatus
from ariane.errors import ArianeError
from ariane.protocol.codes import RequestCode
from ariane.protocol.records.record import Record as StoredRecord
from ariane.protocol.requests.admin import CreateTopic
from ariane.protocol.requests.failover import MemberRequest
from ariane.store.check.reader import read_log
from ariane.testing import java
from failover_hosts import BROKERS, CUT, ETCD, HOSTS, NAME_SERVERS, HostedSet, hosted_set, inside_namespaces, sh

TOPIC, QUEUES, SENDERS, BATCH, PACE_S = "Campaign", 4, 4, 24, 0.07
DAY_S = 86_400
QUIET_S = 40
CLOCK_STEPS_S = (-3600, -30, 5, 30, 3600)
KEPT = Path(tempfile.gettempdir())  # stores and logs of the brokers after a fault
Ends = Callable[[], Awaitable[None]]


class CampaignLoad:
    """Clients of the set, and what they were promised."""

    def __init__(self, namesrv: str, *, has_java: bool) -> None:
        self.namesrv, self.has_java = namesrv, has_java
        self.acknowledged: dict[bytes, tuple[int, int]] = {}  # first body of a batch: queue and offset
        self.count = self.failed = 0
        self.errors: Counter[str] = Counter()  # of failed sends
        self.java_ids: set[str] = set()  # acknowledged to Java's producer
        self.received: Counter[bytes] = Counter()
        self.java_received: set[str] = set()
        self.acknowledged_at: list[float] = [time.monotonic()]
        self._programs: list[subprocess.Popen[str]] = []  # of Java
        self._is_over = False

    @contextlib.asynccontextmanager
    async def running(self) -> Any:
        async with contextlib.AsyncExitStack() as stack:
            producer = await stack.enter_async_context(Producer(self.namesrv, "P"))
            consumer = PushConsumer(self.namesrv, "G", {TOPIC: "*"}, self._receive, start="first")
            await stack.enter_async_context(consumer)
            tasks = [asyncio.create_task(self._send(producer, sender)) for sender in range(SENDERS)]
            if self.has_java:
                tasks += [
                    asyncio.create_task(asyncio.to_thread(work)) for work in (self._java_send, self._java_receive)
                ]
            try:
                yield
                self._is_over = True
                await asyncio.gather(*tasks[:SENDERS])
                await self._settle()
            finally:
                self._is_over = True
                for program in self._programs:
                    program.terminate()
                await asyncio.gather(*tasks[SENDERS:])

    async def _settle(self) -> None:
        """Wait until the consumer has everything, or received nothing for longer than a master that died holds a pull."""
        last, received = time.monotonic(), -1
        while len(self.received) < self.count and time.monotonic() - last < QUIET_S:
            if received != (received := sum(self.received.values())):
                last = time.monotonic()
            await asyncio.sleep(0.2)

    async def _receive(self, messages: list[ReceivedMessage]) -> None:
        self.received.update(message.body for message in messages)

    async def _send(self, producer: Producer[bytes], sender: int) -> None:
        for number in itertools.count():
            if self._is_over:
                return
            bodies = [b"%d-%d-%d" % (sender, number, at) for at in range(BATCH)]
            try:
                result = await producer.send_batch([Message(topic=TOPIC, body=body) for body in bodies])
            except ArianeError as error:
                self.failed += 1
                self.errors[str(error)[:120]] += 1
                await asyncio.sleep(0.05)
                continue
            if result.status is not SendStatus.SEND_OK:
                self.failed += 1
                continue
            self.acknowledged_at.append(time.monotonic())
            self.acknowledged[bodies[0]] = result.queue.queue_id, result.queue_offset
            self.count += BATCH
            await asyncio.sleep(PACE_S)

    def _java(self, main: str, *arguments: str) -> Iterator[dict[str, Any]]:
        """Yield what a Java program prints, which is started again when an error ended it."""
        while not self._is_over:
            with java.start(main, [self.namesrv, TOPIC, *arguments]) as program:
                self._programs.append(program.process)
                yield from program.events(time.monotonic() + DAY_S)
                self._programs.remove(program.process)

    def _java_send(self) -> None:
        for event in self._java("ariane.peers.Produce", "JP", "1000000"):
            if event.get("status") == "SEND_OK":
                self.java_ids.add(event["msgId"])

    def _java_receive(self) -> None:
        self.java_received.update(
            event["msgId"] for event in self._java("ariane.peers.Consume", "JG", "*", "0", str(DAY_S))
        )

    def longest_s(self, start: float) -> float:
        """Return the longest time without an acknowledgement since `start`."""
        times = [start, *(at for at in self.acknowledged_at[-20_000:] if at > start), time.monotonic()]
        return max(after - before for before, after in itertools.pairwise(times))


class Faults:
    """Faults at the hosts of a set. Each kind begins, and returns how it ends."""

    def __init__(self, hosts: HostedSet, rng: random.Random, ttl_s: int) -> None:
        self.hosts, self.rng, self.ttl_s = hosts, rng, ttl_s
        self.counts: Counter[str] = Counter()
        self.ended = 0  # brokers that ended by themselves
        self.kinds: dict[str, Callable[[str], Awaitable[Ends]]] = {
            "kill": self.kill,
            "unplugged and killed": self.unplug,
            "stop": self.stop,
            "pause": self.pause,
            "switch": self.switch,
            "partition of brokers": self.partition,
            "partition from etcd": self.partition_etcd,
            "isolation": self.isolate,
            "loss": self.lose,
            "delay and reordering": self.delay,
            "duplicates": self.duplicate,
            "full disk": self.fill_disk,
            "failing disk": self.fail_disk,
            "hanging disk": self.freeze_disk,
            "clock step": self.step_clock,
            "etcd member": self.etcd_member,
            "etcd without quorum": self.etcd_outage,
            "name server": self.name_server,
        }

    def duration_s(self) -> float:
        return self.rng.choice((0.3, 1, 2, self.ttl_s, 2 * self.ttl_s, 3 * self.ttl_s))

    async def strike(self, kind: str, name: str) -> None:
        """Begin a fault, and end it after a while."""
        self.counts[kind] += 1
        end = await self.kinds[kind](name)
        try:
            await asyncio.sleep(self.duration_s())
        finally:
            await end()

    # --- processes ---

    async def kill(self, name: str) -> Ends:
        member = self.hosts.members[name]
        await asyncio.to_thread(member.kill)
        return called(member.start)

    async def unplug(self, name: str) -> Ends:
        """Peers see no end of the connections: they are half open."""
        member = self.hosts.members[name]
        plug = self.hosts.network.rule([*around(name, HOSTS)], CUT)
        await asyncio.to_thread(member.kill)

        async def end() -> None:
            plug()
            member.start()

        return end

    async def stop(self, name: str) -> Ends:
        member = self.hosts.members[name]
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(member.stop)
        await asyncio.to_thread(member.kill)
        return called(member.start)

    async def pause(self, name: str) -> Ends:
        member = self.hosts.members[name]
        member.signal(signal.SIGSTOP)
        return called(lambda: member.signal(signal.SIGCONT))

    async def switch(self, name: str) -> Ends:
        request = MemberRequest("handover", self.rng.choice(BROKERS), 0)
        with contextlib.suppress(ArianeError):
            addr = self.hosts.members[name].addr
            await self.hosts.peers.request(addr, RequestCode.MEMBER_REQUEST, request, timeout_ms=1000)
        return called(lambda: None)

    # --- network ---

    async def partition(self, name: str) -> Ends:
        others = (
            BROKERS if self.rng.random() < 0.6 else (self.rng.choice([other for other in BROKERS if other != name]),)
        )
        return called(self.hosts.network.rule(self._one_way(name, others), CUT))

    async def partition_etcd(self, name: str) -> Ends:
        return called(self.hosts.network.rule(self._one_way(name, ETCD), CUT))

    async def isolate(self, name: str) -> Ends:
        return called(self.hosts.network.rule(self._one_way(name, HOSTS), CUT))

    def _one_way(self, name: str, others: tuple[str, ...]) -> list[tuple[str, str]]:
        """Return the directions to others, from them, or both."""
        pairs = [*around(name, others)]
        side = self.rng.choice((0, 1, 2))
        return [pair for pair in pairs if side == 2 or pair[side] == name]

    async def lose(self, name: str) -> Ends:
        return called(self.hosts.network.rule(around(name, HOSTS), (self.rng.choice((0.02, 0.1, 0.3)), 0, 0)))

    async def delay(self, name: str) -> Ends:
        return called(self.hosts.network.rule(around(name, HOSTS), (0, self.rng.choice((5, 40, 200, 1500)), 0)))

    async def duplicate(self, name: str) -> Ends:
        return called(self.hosts.network.rule(around(name, HOSTS), (0, 5, 0.3)))

    # --- disks and clocks ---

    async def fill_disk(self, name: str) -> Ends:
        disk = self.hosts.members[name].disk
        ballast = disk / "ballast"
        await asyncio.to_thread(sh, f"fallocate -l $(( $(stat -f -c '%a * %S' {disk}) )) {ballast}", check=False)
        return called(lambda: ballast.unlink(missing_ok=True))

    async def fail_disk(self, name: str) -> Ends:
        member = self.hosts.members[name]
        await asyncio.to_thread(sh, f"dd if=/dev/zero of={member.below}/ballast bs=1M", check=False)

        async def end() -> None:
            await asyncio.to_thread(member.kill)
            await asyncio.to_thread(member.repair)
            member.start()

        return end

    async def freeze_disk(self, name: str) -> Ends:
        disk = self.hosts.members[name].disk
        await asyncio.to_thread(sh, f"fsfreeze -f {disk}", check=False)

        async def end() -> None:
            await asyncio.to_thread(sh, f"fsfreeze -u {disk}", check=False)

        return end

    async def step_clock(self, name: str) -> Ends:
        member = self.hosts.members[name]
        member.step_clock(self.rng.choice(CLOCK_STEPS_S))
        return called(lambda: member.step_clock(0))

    # --- other servers ---

    async def etcd_member(self, name: str) -> Ends:
        process = self.hosts.others[self.rng.choice(ETCD)]
        process.signal(signal.SIGSTOP)
        return called(lambda: process.signal(signal.SIGCONT))

    async def etcd_outage(self, name: str) -> Ends:
        processes = [self.hosts.others[host] for host in self.rng.sample(ETCD, 2)]
        for process in processes:
            process.signal(signal.SIGSTOP)
        return called(lambda: [process.signal(signal.SIGCONT) for process in processes])

    async def name_server(self, name: str) -> Ends:
        process = self.hosts.others[self.rng.choice(NAME_SERVERS)]
        await asyncio.to_thread(process.kill)
        return called(process.start)


def around(name: str, others: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return both directions between a host and others."""
    return [pair for other in others for pair in ((name, other), (other, name)) if other != name]


def called(function: Callable[[], object]) -> Ends:
    async def end() -> None:
        function()

    return end


def check(hosts: HostedSet, load: CampaignLoad) -> dict[str, object]:
    """Read the stores of all members, and judge what was promised by them alone."""
    logs: dict[str, dict[tuple[int, int], tuple[bytes, str]]] = {}
    faults: list[str] = []  # of the logs
    for name, member in hosts.members.items():
        log = logs[name] = {}
        for item in read_log(str(member.store)):
            if not isinstance(item, StoredRecord):
                faults.append(f"{name}: {item}")
            elif item.topic == TOPIC:
                position = item.queue_id, item.queue_offset
                assert position not in log, f"{name} has two messages at {position}"
                log[position] = item.body, item.properties.partition("UNIQ_KEY\x01")[2].partition("\x02")[0]
    log = logs["a"] | logs["b"] | logs["c"]
    for name, other in logs.items():
        if lacking := sorted(log.keys() - other.keys()):
            faults.append(f"{name} lacks {len(lacking)} of {len(log)} messages, {lacking[0]} to {lacking[-1]}")
        if different := [position for position, message in other.items() if log[position] != message]:
            faults.append(f"{name} has other messages at {len(different)} positions, first at {min(different)}")
    assert not faults, faults
    lost = 0
    for first, (queue, offset) in load.acknowledged.items():
        stem = first.rpartition(b"-")[0]
        wanted = [(queue, offset + at) for at in range(BATCH)]
        lost += sum(log.get(place, (b"",))[0] != b"%b-%d" % (stem, at) for at, place in enumerate(wanted))
    bodies = Counter(body for body, _ in log.values() if b"-" in body)
    ids = {unique for _, unique in log.values()}
    java_lost = len(load.java_ids - ids)
    unread = sum(
        1
        for first in load.acknowledged
        for at in range(BATCH)
        if b"%b-%d" % (first.rpartition(b"-")[0], at) not in load.received
    )
    return {
        "messages": len(log),
        "acknowledged": load.count + len(load.java_ids),
        "of them to java": len(load.java_ids),
        "lost": lost + java_lost,
        "not received": unread,
        "not received by java": len(load.java_ids - load.java_received),
        "duplicates stored": sum(count - 1 for count in bodies.values()),
        "received again": sum(load.received.values()) - len(load.received),
        "failed sends": load.failed,
        "sends": load.count // BATCH + load.failed,
    }


async def run(seed: int, minutes: float, ttl_s: int, home: Path, write: Callable[[dict[str, object]], None]) -> None:
    rng = random.Random(seed)
    settings: dict[str, object] = {
        "flushDiskType": "SYNC_FLUSH" if seed % 2 else "ASYNC_FLUSH",
        "failoverTtl": ttl_s,
    }
    async with hosted_set(home, settings) as hosts:
        with kept_on_failure(home, KEPT / f"campaign-{seed}"):
            await create_topic(hosts)
            has_java = seed % 3 == 0 and not java.available()
            load, faults = CampaignLoad(hosts.namesrv, has_java=has_java), Faults(hosts, rng, ttl_s)
            async with load.running(), asyncio.TaskGroup() as tasks:
                supervisor = tasks.create_task(supervise(hosts, faults))
                end = time.monotonic() + 60 * minutes  # after the start of the clients, which a busy machine delays
                while time.monotonic() < end:
                    await one_round(hosts, load, faults, write)
                supervisor.cancel()
            # Everything is in each log before the brokers stop: the master last.
            master = await hosts.complete(len(BROKERS))
            await asyncio.sleep(1)
            for name in sorted(BROKERS, key=lambda name: name == master):
                await asyncio.to_thread(hosts.members[name].stop)
            write(
                {
                    "seed": seed,
                    **settings,
                    **check(hosts, load),
                    "faults": sum(faults.counts.values()),
                    "kinds": faults.counts,
                    "ended by themselves": faults.ended,
                }
            )


@contextlib.contextmanager
def kept_on_failure(home: Path, directory: Path) -> Iterator[None]:
    """Copy stores and logs of the brokers out of the namespace if the run fails."""
    try:
        yield
    except BaseException:
        ignored = shutil.ignore_patterns("below-*", "data-*")
        shutil.copytree(home, directory, ignore=ignored, dirs_exist_ok=True)
        raise


async def create_topic(hosts: HostedSet) -> None:
    """Create the topic at the master, also if a busy machine moves the lease meanwhile."""
    header = CreateTopic(TOPIC, "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG", 0, order=False)
    while True:
        addr = hosts.members[await hosts.complete(len(BROKERS), limit_s=240)].addr
        with contextlib.suppress(ArianeError):
            await hosts.peers.request_ok(addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_ms=10_000)
            return


async def supervise(hosts: HostedSet, faults: Faults) -> None:
    """Start brokers again that ended by themselves, for example at a disk without room."""
    while True:
        for member in hosts.members.values():
            if member.process is not None and member.process.poll() is not None:
                member.process = None
                member.start()
                faults.ended += 1
        await asyncio.sleep(1)


async def one_round(
    hosts: HostedSet, load: CampaignLoad, faults: Faults, write: Callable[[dict[str, object]], None]
) -> None:
    """Strike one to six times, in part at once, then wait until the set is complete."""
    rng = faults.rng
    master = await hosts.complete(len(BROKERS), limit_s=240)
    await asyncio.sleep(rng.choice((0.2, 1, 2)))
    start, count = time.monotonic(), rng.choice((1, 1, 2, 3, 4, 6))
    free, running, struck = list(BROKERS), [], []
    for _ in range(count):
        kind = rng.choice(list(faults.kinds))
        name = master if rng.random() < 0.5 and master in free else rng.choice(free)
        free.remove(name)  # one fault at a time at each host
        struck.append((kind, name))
        running.append(asyncio.create_task(faults.strike(kind, name)))
        await asyncio.sleep(rng.choice((0, 0.3, 1.5)))
        if not free:
            await asyncio.gather(*running)
            free = list(BROKERS)
    await asyncio.gather(*running)
    healed = time.monotonic()
    errors = load.errors.most_common(2)
    load.errors.clear()
    await hosts.complete(len(BROKERS), limit_s=240)
    was_single = count == 1 and struck[0][1] == master
    write(
        {
            "at": time.strftime("%H:%M:%S"),
            "struck": struck,
            "master": master,
            "single at master": was_single,
            "longest_s": round(load.longest_s(start), 2),
            "seconds": round(healed - start, 1),
            "complete_s": round(time.monotonic() - healed, 1),
            "acknowledged": load.count,
            "failed": load.failed,
            "errors": errors,
        }
    )


def main() -> None:
    inside_namespaces()
    seed, minutes = int(sys.argv[1]), float(sys.argv[2])
    ttl_s = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    with contextlib.ExitStack() as stack:
        figures = stack.enter_context(Path(sys.argv[4]).open("a")) if len(sys.argv) > 4 else sys.stdout

        def write(line: dict[str, object]) -> None:
            print(json.dumps(line), file=figures, flush=True)

        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True)))
        asyncio.run(run(seed, minutes, ttl_s, home, write))


if __name__ == "__main__":
    main()

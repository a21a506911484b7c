"""Start a broker on a fresh store, Java's or ours in one of its implementations; read the CPU time and memory of its process.

CPU time is utime + stime of the whole process (every thread of it, the Java collector's and compiler's too). On a machine that
does other work at the same time it is more reliable than rates, but it does not show that a second core was idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ariane.errors import ArianeError
from ariane.model.topic import AUTO_CREATE_TOPIC, PERM_READ, PERM_WRITE
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import signing
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import CreateTopic
from ariane.protocol.requests.messaging import SendMessage
from ariane.protocol.signing import Credentials
from ariane.testing import java

HERE = Path(__file__).resolve().parent
JAVA_HEAP = ("-Xms4g", "-Xmx4g")  # as in the runbroker.sh that ships for small machines
# Neither broker answers "busy" here: a loader ends at the first refusal, and a machine with other work stalls for a second now
# and then.
PATIENT = {"brokerFastFailureEnable": "false", "osPageCacheBusyTimeOutMills": "60000"}
START_S = 60
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


IMPLEMENTATIONS = ("native", "python")
VARIABLE = "ARIANE_IMPL"
SELECTED = "from ariane.kernels.implementation import selected; print(selected().description)"


class Running(NamedTuple):
    server: str  # java, native, python; ariane: ours in the implementation that it selects
    addr: str
    pid: int
    start_s: float
    namesrv: str


@contextlib.contextmanager
def started(
    server: str,
    namesrv: str,
    place: Path,
    properties: Mapping[str, str] | None = None,
    *,
    account: Credentials | None = None,
) -> Iterator[Running]:
    """Run a broker on a fresh store; measure the time from its spawn to its first accepted message.

    Args:
        server: `java`, an implementation of ours, or `ariane` for the one that it selects.
        namesrv: Address of its name server; ours registers nowhere if it is empty.
        place: Directory for its files.
        properties: Settings in addition to those of all benches.
        account: Signs the first message, if the broker has access control.
    """
    port = java.free_port()
    began = time.perf_counter()
    with broker_process(server, namesrv, place, port, properties or {}) as pid:
        addr = f"127.0.0.1:{port}"
        yield Running(server, addr, pid, first_message(addr, began, account), namesrv)


@contextlib.contextmanager
def broker_process(
    server: str, namesrv: str, place: Path, port: int, properties: Mapping[str, str], heap: Sequence[str] = JAVA_HEAP
) -> Iterator[int]:
    """Run the process of a broker, master or slave, and return its pid; it is not waited for."""
    properties = {**PATIENT, **properties}
    if server == "java":
        with java.broker(place, namesrv, port=port, properties=properties, jvm_args=heap, wait=False) as broker:
            yield broker.pid
        return
    settings = {
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": str(port),
        "namesrvAddr": namesrv,
        "storePathRootDir": str(place / "store"),
        **properties,
    }
    conf = place / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [sys.executable, "-m", "ariane.cli", "broker", "-c", str(conf)]
    process = subprocess.Popen(command, env=environment(server))
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def environment(server: str) -> dict[str, str]:
    """Return the environment of a process of ours that runs in this implementation."""
    return {**os.environ, VARIABLE: server} if server in IMPLEMENTATIONS else dict(os.environ)


def describe_implementation(server: str) -> tuple[str, str]:
    """Return the description of an implementation, and why it cannot run; one of them is empty."""
    command = [sys.executable, "-c", SELECTED]
    done = subprocess.run(command, env=environment(server), capture_output=True, text=True, check=False)
    description = done.stdout.strip()
    if done.returncode:
        return "", (done.stderr.strip() or "no error message").splitlines()[-1]
    if not description.startswith(server):
        return "", f"{VARIABLE}={server} selects {description}"
    return description, ""


def first_message(addr: str, began: float, account: Credentials | None = None) -> float:
    """Seconds from `began` until the broker has accepted a message."""
    header = SendMessage("bench", "FirstMessage", "TBW102", 1, 0, 0, int(time.time() * 1000), 0)

    sign = functools.partial(signing.sign, account) if account else None

    async def attempt() -> None:
        async with ConnectionPool(sign=sign) as peers:
            await peers.request_ok(addr, RequestCode.SEND_MESSAGE_V2, header, b"first", timeout_ms=1000)

    while time.perf_counter() - began < START_S:
        try:
            asyncio.run(attempt())
            return time.perf_counter() - began
        except ArianeError:
            time.sleep(0.02)
    raise SystemExit(f"the broker at {addr} accepted nothing within {START_S} s")


def make_topic(addr: str, topic: str, queues: int) -> None:
    header = CreateTopic(topic, AUTO_CREATE_TOPIC, queues, queues, PERM_READ | PERM_WRITE)

    async def make() -> None:
        async with ConnectionPool() as peers:
            await peers.request_ok(addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_ms=30_000)

    asyncio.run(make())


def cpu_s(pid: int) -> float:
    """CPU time that a process has used so far; ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S  # utime and stime, the 14th and 15th of the line


def thread_cpu_s(pid: int) -> dict[str, float]:
    """Return the CPU time of each thread of a process, by name and id: `main 17`."""
    threads = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            begin, _, rest = (task / "stat").read_text().rpartition(")")
            fields = rest.split()
            threads[f"{begin.partition('(')[2]} {task.name}"] = (int(fields[11]) + int(fields[12])) * TICK_S
    return threads


def machine_cpu_s() -> tuple[float, float]:
    """Return the CPU time of all cores since the boot: all of it, and the idle part."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    times = [int(field) * TICK_S for field in fields]
    return sum(times), times[3] + times[4]  # idle and iowait


def descendants(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def tree_cpu_s() -> float:
    """CPU time of this process and all below it, those that have ended included."""
    total = 0.0
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) * TICK_S
    return total


def memory_mib(pid: int) -> dict[str, float]:
    """VmHWM: peak resident; VmRSS: resident now; RssAnon: now, without mapped files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return {name: int(value) / 1024 for name, value in re.findall(r"^(VmHWM|VmRSS|RssAnon):\s+(\d+) kB", status, re.M)}

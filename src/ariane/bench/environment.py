"""Where a benchmark ran: this machine, the software, and the brokers with their settings that decide the figures."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib import metadata
from pathlib import Path

import msgspec

from ariane.cluster.connection import BrokerServer, ClusterConnection
from ariane.errors import ArianeError
from ariane.protocol import fastjson, java_properties
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.routing import KvTableBody

UNKNOWN = "unknown"


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that ran the clients."""

    name: str  # host name
    system: str  # operating system and its release
    cpus: int  # number of CPUs that this process may use
    cpu_model: str  # model of the CPU
    memory_bytes: int | None  # size of the memory; None if unknown
    load_average: float | None  # load average of the last minute at the start; None if unknown
    ariane: str  # version of the clients
    python: str  # version of Python


class BrokerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A master of the topic."""

    name: str  # broker name
    cluster: str  # cluster name
    addr: str  # its address
    version: str  # version that it reports; Ariane reports the version of RocketMQ that it implements
    is_ariane: bool | None  # whether it is a broker of Ariane; None if unknown
    flush_mode: str  # flushDiskType: SYNC_FLUSH acknowledges after the disk has the message, ASYNC_FLUSH before
    role: str  # brokerRole: SYNC_MASTER acknowledges after a slave has the message
    errors: tuple[str, ...] = ()  # why facts are unknown


def describe_host() -> HostFacts:
    try:
        load_average = round(os.getloadavg()[0], 2)
    except OSError:
        load_average = None
    return HostFacts(
        name=platform.node() or UNKNOWN,
        system=f"{platform.system()} {platform.release()}",
        cpus=_usable_cpus(),
        cpu_model=_cpu_model(),
        memory_bytes=_memory_bytes(),
        load_average=load_average,
        ariane=metadata.version("ariane"),
        python=f"{platform.python_implementation()} {platform.python_version()}",
    )


async def describe_broker(cluster: ClusterConnection, server: BrokerServer) -> BrokerFacts:
    """Return the facts of a broker. What it does not report is unknown, with the reason."""
    errors = []
    runtime: dict[str, str] = {}
    settings: dict[str, str] = {}
    try:
        answer = await cluster.request(server.addr, RequestCode.GET_BROKER_RUNTIME_INFO)
        runtime = dict(fastjson.decode(answer.body, KvTableBody).table)
    except ArianeError as error:
        errors.append(f"runtime information: {error}")
    try:
        answer = await cluster.request(server.addr, RequestCode.GET_BROKER_CONFIG)
        settings = java_properties.parse(answer.body.decode(errors="replace"))
    except ArianeError as error:
        errors.append(f"settings: {error}")
    # Ariane serves requests in an event loop and reports a queue capacity of 0; Java's thread pools have queues.
    capacity = runtime.get("sendThreadPoolQueueCapacity")
    return BrokerFacts(
        name=server.broker,
        cluster=server.cluster,
        addr=server.addr,
        version=runtime.get("brokerVersionDesc", UNKNOWN),
        is_ariane=None if capacity is None else capacity == "0",
        flush_mode=settings.get("flushDiskType", UNKNOWN),
        role=settings.get("brokerRole", UNKNOWN),
        errors=tuple(errors),
    )


def _usable_cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None

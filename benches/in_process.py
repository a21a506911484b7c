"""What a message costs inside the broker: the send and the pull path on a real broker's handlers, no socket anywhere.

    python benches/in_process.py [--path send|pull|both] [--size 1024] [--queues 4]
        [--depth 128] [--count 50000] [--rounds 5] [--sync] [--profile]

The frames of benches/pipelined.py (or pulling.py) are fed to a Connection of ariane.net.connection as a socket would, `depth` in
each read, with a transport that throws away what is written; the loop runs between reads, so that queue entries are derived and
flushes happen. CPU time per message of the whole process is printed, of the cheapest round; with --profile also where it goes
(cProfile makes small functions look dearer than they are). The last line is JSON with --json.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import io
import json
import pstats
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

import pipelined
import pulling
from answers import OPAQUE
from ariane.broker.broker import Broker
from ariane.broker.config import BrokerConfig
from ariane.model.topic import AUTO_CREATE_TOPIC, PERM_READ, PERM_WRITE
from ariane.net.connection import Connection
from ariane.protocol import command
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.admin import CreateTopic

READ_MAX = 65536  # maximum size of a read from a socket
PATH_SHOWN = 45


class Nowhere(asyncio.Transport):
    """A transport that throws away what is written, once it has seen that it says SUCCESS."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self._responses = 0  # number of responses written
        self._written = asyncio.Event()  # set by each write

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes) -> None:
        responses = data.count(b'"code":0,')
        if responses != data.count(b'"language":"PYTHON"'):
            raise SystemExit(f"refused: {data[:500]!r}")
        self._responses += responses
        self._written.set()

    async def wait_responses(self, count: int) -> None:
        """Wait until `count` more responses have been written than at the last call."""
        self._responses -= count
        while self._responses < 0:
            self._written.clear()
            await self._written.wait()

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        raise SystemExit("the broker closed the connection")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--path", choices=("send", "pull", "both"), default="both")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--count", type=int, default=50_000, help="messages of a round")
    parser.add_argument("--depth", type=int, default=128, help="sends that arrive together")
    parser.add_argument(
        "--rounds", type=int, default=5, help="of each path; the cheapest counts: others were disturbed"
    )
    parser.add_argument(
        "--sync", action="store_true", help="flush synchronously: the next `depth` sends follow the responses"
    )
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the result as the last line")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ariane-bench-") as place:
        result = uvloop.run(measure(Path(place), args))
    for name, value in result.items():
        print(f"{name:34} {value:12,.2f}")
    if args.json:
        print(json.dumps(result))


async def measure(place: Path, args: argparse.Namespace) -> dict[str, float]:
    settings = BrokerConfig(
        broker_name="broker-a",
        broker_ip1="127.0.0.1",
        bind_address="127.0.0.1",
        listen_port=0,
        namesrv_addr="",
        store_path_root_dir=str(place / "store"),
        broker_fast_failure_enable=False,
        flush_disk_type="SYNC_FLUSH" if args.sync else "ASYNC_FLUSH",
    )
    async with Broker(settings) as broker:
        connection, transport = connected(broker)
        await feed(connection, transport, [topic(args.queues)])
        await feed(connection, transport, sends(max(2_000, 2 * args.queues), args))
        result: dict[str, float] = {}
        rounds = [await timed(connection, transport, list(sends(args.count, args)), args) for _ in range(args.rounds)]
        if args.path != "pull":
            result |= cheapest(f"send {args.size} B", rounds, args.count)
        if args.path != "send":
            reads = list(pulls(args.count, args))
            rounds = [await timed(connection, transport, reads, args) for _ in range(args.rounds)]
            result |= cheapest(f"pull {args.size} B", rounds, args.count)
        return result


def cheapest(name: str, rounds: list[tuple[float, float]], count: int) -> dict[str, float]:
    user, system = min(rounds, key=sum)
    return {
        f"{name}: cpu us/message": (user + system) / count * 1e6,
        f"{name}: of it in the kernel": system / count * 1e6,
    }


def connected(broker: Broker) -> tuple[Connection, Nowhere]:
    """A connection of the broker's server that no socket belongs to."""
    server = broker._server
    connection = Connection(1 << 40, server._handlers, is_server=True, limits=server.limits, turns=server.turns)
    transport = Nowhere()
    connection.connection_made(transport)
    return connection, transport


async def timed(
    connection: Connection, transport: Nowhere, reads: list[bytes], args: argparse.Namespace
) -> tuple[float, float]:
    """CPU seconds of serving `reads`, of the user and in the kernel."""
    profile = cProfile.Profile() if args.profile else None
    began = resource.getrusage(resource.RUSAGE_SELF)
    if profile:
        profile.enable()
    await feed(connection, transport, reads)
    if profile:
        profile.disable()
    ended = resource.getrusage(resource.RUSAGE_SELF)
    if profile:
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(PATH_SHOWN)
        print(text.getvalue())
    return ended.ru_utime - began.ru_utime, ended.ru_stime - began.ru_stime


async def feed(connection: Connection, transport: Nowhere, reads: Iterator[bytes] | list[bytes]) -> None:
    for data in reads:
        for at in range(0, len(data), READ_MAX):
            connection.data_received(data[at : at + READ_MAX])
            await asyncio.sleep(0)
            while not transport.reading:
                await asyncio.sleep(0)
        await transport.wait_responses(data.count(b'"opaque":'))


def topic(queues: int) -> bytes:
    header = CreateTopic("InProcess", AUTO_CREATE_TOPIC, queues, queues, PERM_READ | PERM_WRITE)
    return b"".join(command.encode(RequestCode.UPDATE_AND_CREATE_TOPIC, opaque=1, flag=0, fields=encode_header(header)))


def sends(count: int, args: argparse.Namespace) -> Iterator[bytes]:
    frames = [pipelined.template("InProcess", queue, args.queues, args.size) for queue in range(args.queues)]
    for first in range(0, count, args.depth):
        numbers = range(first, min(count, first + args.depth))
        yield b"".join(
            b"%b%d%b" % (frames[n % len(frames)][0], OPAQUE + n, frames[n % len(frames)][1]) for n in numbers
        )


def pulls(count: int, args: argparse.Namespace) -> Iterator[bytes]:
    headers = [pulling.template("InProcess", "in-process", queue) for queue in range(args.queues)]
    for offset in range(0, count // args.queues, pulling.AT_ONCE):
        yield b"".join(pulling.pull(header, offset, OPAQUE + queue) for queue, header in enumerate(headers))


if __name__ == "__main__":
    main()

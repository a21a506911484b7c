"""CPU time of a message inside the broker: the send and the pull path on a real broker's handlers, without sockets.

    [ARIANE_IMPL=native|python] python benches/in_process.py [--path send|pull|both] [--size 1024] [--queues 4]
        [--depth 128] [--count 50000] [--rounds 5] [--sync] [--signed] [--steps | --profile]

Frames as the Java client sends them are fed to a Connection of ariane.net.connection as a socket would, `depth` in each read. The
transport discards what is written; the loop runs between reads, so that queue entries are written and flushes happen. Printed is
the CPU time per message of the whole process, of the cheapest round; with `--steps` also that of each step, in rounds
of their own; with `--profile` that of each function (cProfile makes small functions look dearer than they are). `--json` prints
the result as the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import io
import json
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import msgspec
import uvloop

from answers import OPAQUE
from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.model.topic import AUTO_CREATE_TOPIC, PERM_READ, PERM_WRITE
from ariane.net.connection import Connection
from ariane.protocol import command, signing
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.admin import CreateTopic
from ariane.protocol.requests.messaging import SUBSCRIPTION, PullMessage, SendMessage
from ariane.protocol.signing import Credentials
from servers import environment
from steps import PULL_STEPS, SEND_STEPS, Step, StepTimes

TOPIC = "InProcess"
READ_MAX = 65536  # maximum size of a read from a socket
FUNCTIONS_SHOWN = 45
STEPS_COUNT, STEPS_ROUNDS = 100_000, 7
SHORT_COUNT, SHORT_ROUNDS = 10_000, 2
PULLED = 32  # messages of a pull
PREFIX = Struct(">iI")  # length, form 0 and header size
SUCCESS = b'{"code":0,'  # what the header of a response without an error begins with
SEARCHED_MAX = 1000  # bytes of a frame whose successors are searched, not stepped to
ACCOUNT = Credentials("some-account", "some-secret")
ACCOUNTS = "accounts: [{accessKey: some-account, secretKey: some-secret, admin: true}]"
# The properties that a Java producer sends.
PROPERTIES = "KEYS\x01bench\x02UNIQ_KEY\x017F0000010A9F18B4AAC2000000000000\x02WAIT\x01true\x02TAGS\x01TagA"


class Nowhere(asyncio.Transport):
    """A transport that checks the codes of what is written and discards it."""

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
        self._responses += count_responses(data)
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


def count_responses(data: bytes) -> int:
    """Return the number of responses, all of them successes. Responses with records are stepped over: a search takes longer."""
    if PREFIX.unpack_from(data)[0] > SEARCHED_MAX:
        count = position = 0
        while position < len(data) and data.startswith(SUCCESS, position + PREFIX.size):
            count += 1
            position += 4 + PREFIX.unpack_from(data, position)[0]
        if position < len(data):
            raise SystemExit(f"refused: {data[position : position + 500]!r}")
        return count
    count = data.count(SUCCESS)
    if count != data.count(b'"language":"PYTHON"'):
        raise SystemExit(f"refused: {data[:500]!r}")
    return count


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
    parser.add_argument("--signed", action="store_true", help="with access control: each request is signed")
    parser.add_argument("--steps", action="store_true", help="measure the steps, too")
    parser.add_argument("--profile", action="store_true", help="print the functions that take most time")
    parser.add_argument("--json", action="store_true", help="print the result as the last line")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ariane-bench-") as place:
        result = uvloop.run(measure(Path(place), args))
    for name, value in result.items():
        print(f"{name:34} {value:12,.2f}")
    if args.json:
        print(json.dumps(result))


async def measure(place: Path, args: argparse.Namespace) -> dict[str, float]:
    if args.signed:
        (place / "conf").mkdir()
        (place / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    settings = BrokerConfig(
        broker_name="broker-a",
        broker_ip1="127.0.0.1",
        bind_address="127.0.0.1",
        listen_port=0,
        namesrv_addr="",
        store_path_root_dir=str(place / "store"),
        broker_fast_failure_enable=False,
        flush_disk_type="SYNC_FLUSH" if args.sync else "ASYNC_FLUSH",
        acl_enable=args.signed,
        rocketmq_home=str(place) if args.signed else "",
    )
    async with Broker(settings) as broker:
        connection, transport = connected(broker)
        await feed(connection, transport, [topic(args)])
        await feed(connection, transport, sends(max(2_000, 2 * args.queues), args))
        result: dict[str, float] = {}
        rounds = [await timed(connection, transport, list(sends(args.count, args)), args) for _ in range(args.rounds)]
        if args.path != "pull":
            result |= cheapest(f"send {args.size} B", rounds, args.count)
        if args.steps and args.path != "pull":
            result |= await stepped(connection, transport, args, SEND_STEPS)
        if args.path != "send":
            reads = list(pulls(args.count, args))
            rounds = [await timed(connection, transport, reads, args) for _ in range(args.rounds)]
            result |= cheapest(f"pull {args.size} B", rounds, args.count)
            if args.steps:
                result |= await stepped(connection, transport, args, PULL_STEPS)
        return result


async def stepped(
    connection: Connection, transport: Nowhere, args: argparse.Namespace, steps: tuple[Step, ...]
) -> dict[str, float]:
    """Return the CPU time per message of each step of a send or a pull in µs, of the cheapest round."""
    name, frames = ("step", sends) if steps is SEND_STEPS else ("pull step", pulls)
    cheapest_round: dict[str, float] = {}
    for _ in range(args.rounds):
        with StepTimes(steps) as times:
            user, system = await timed(connection, transport, list(frames(args.count, args)), args)
        us = times.per_message_us(user + system, args.count)
        if not cheapest_round or sum(us.values()) < sum(cheapest_round.values()):
            cheapest_round = us
    return {f"{name}: {step}": value for step, value in cheapest_round.items()}


def measure_steps(implementation: str, *, is_short: bool) -> dict[str, float]:
    """Return the steps of a send of 128 B in an implementation, measured in a process of its own."""
    count, rounds = (SHORT_COUNT, SHORT_ROUNDS) if is_short else (STEPS_COUNT, STEPS_ROUNDS)
    options = ["--path", "send", "--size", "128", "--count", str(count), "--rounds", str(rounds), "--steps", "--json"]
    command = [sys.executable, __file__, *options]
    done = subprocess.run(command, env=environment(implementation), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"in_process.py with the {implementation} implementation ended with {done.returncode}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {name.removeprefix("step: "): value for name, value in result.items() if name.startswith("step: ")}


def cheapest(name: str, rounds: list[tuple[float, float]], count: int) -> dict[str, float]:
    user, system = min(rounds, key=sum)
    return {
        f"{name}: cpu us/message": (user + system) / count * 1e6,
        f"{name}: of it in the kernel": system / count * 1e6,
    }


def connected(broker: Broker) -> tuple[Connection, Nowhere]:
    """Return a connection of the broker's server without a socket."""
    server = broker._server
    router = server._turn_router(server._handlers)
    connection = Connection(1 << 40, server._handlers, is_server=True, limits=server.limits, turns=router)
    transport = Nowhere()
    connection.connection_made(transport)
    return connection, transport


async def timed(
    connection: Connection, transport: Nowhere, reads: list[bytes], args: argparse.Namespace
) -> tuple[float, float]:
    """Return the CPU seconds of serving `reads`, in user mode and in the kernel."""
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
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(FUNCTIONS_SHOWN)
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


def request(code: int, opaque: int, header: msgspec.Struct, body: bytes, args: argparse.Namespace) -> bytes:
    """Return the frame of a request, signed if requests are."""
    fields = encode_header(header)
    if args.signed:
        fields = signing.sign(ACCOUNT, fields, body)
    return b"".join(command.encode(code, opaque=opaque, flag=0, fields=fields, body=body))


def topic(args: argparse.Namespace) -> bytes:
    header = CreateTopic(TOPIC, AUTO_CREATE_TOPIC, args.queues, args.queues, PERM_READ | PERM_WRITE)
    return request(RequestCode.UPDATE_AND_CREATE_TOPIC, 1, header, b"", args)


def sends(count: int, args: argparse.Namespace) -> Iterator[bytes]:
    frames = [send_template(queue, args) for queue in range(args.queues)]
    for first in range(0, count, args.depth):
        numbers = range(first, min(count, first + args.depth))
        yield b"".join(
            b"%b%d%b" % (frames[n % len(frames)][0], OPAQUE + n, frames[n % len(frames)][1]) for n in numbers
        )


def send_template(queue: int, args: argparse.Namespace) -> tuple[bytes, bytes]:
    """Return the frame of a send, cut at its opaque."""
    born_ms = int(time.time() * 1000)
    header = SendMessage("in-process", TOPIC, AUTO_CREATE_TOPIC, args.queues, queue, 0, born_ms, 0, PROPERTIES, 0)
    frame = request(RequestCode.SEND_MESSAGE_V2, OPAQUE, header, b"x" * args.size, args)
    before, _, after = frame.partition(str(OPAQUE).encode())
    return before, after


def pulls(count: int, args: argparse.Namespace) -> Iterator[bytes]:
    for offset in range(0, count // args.queues, PULLED):
        yield b"".join(pull(queue, offset, args) for queue in range(args.queues))


def pull(queue: int, offset: int, args: argparse.Namespace) -> bytes:
    """Return the frame of a pull at an offset."""
    header = PullMessage("in-process", TOPIC, queue, offset, PULLED, SUBSCRIPTION, 0, 0, "*", 0, None)
    return request(RequestCode.PULL_MESSAGE, OPAQUE + queue, header, b"", args)


if __name__ == "__main__":
    main()

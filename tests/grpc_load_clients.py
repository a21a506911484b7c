"""gRPC clients of `mixed_client_load`: calls without a client library, or the official client for Java in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from ariane.proxy import api
from mixed_client_load import (
    FIFO,
    INVISIBLE_S,
    MESSAGE_GROUPS,
    MIXED,
    ORDERED,
    SENDERS,
    Load,
    now_ms,
    ordered_body,
)

GRPC, PUSH = "grpc", "push"
OK, NO_MESSAGE = 20000, 40401
SIMPLE_CONSUMER = 3
BROKER = "broker-a"
RECONNECT = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 300)]
PROGRAM = Path(__file__).parent / "interop" / "official_5x_clients" / "LoadProgram.java"

Call = Callable[..., Awaitable[Any]]


class CallClients:
    """Producers and simple consumers that are calls of this process."""

    groups = (GRPC,)

    def __init__(self, endpoints: str) -> None:
        self._endpoints = endpoints

    async def produce(self, load: Load) -> None:
        """Send until the load stops."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(SENDERS):
                tasks.create_task(self._send_mixed(load, number))
            for number in range(MESSAGE_GROUPS):
                tasks.create_task(self._send_in_order(load, f"g{number}"))

    async def consume(self, load: Load) -> None:
        """Receive and acknowledge until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for group, topic in ((GRPC, MIXED), (ORDERED, FIFO)) * 2:
                tasks.create_task(self._consume(load, group, topic))

    async def _send_mixed(self, load: Load, sender: int) -> None:
        async with self._channel(load, f"sender-{sender}") as call:
            for number in itertools.count():
                if not load.is_sending:
                    return
                if await self._send(call, MIXED, b"grpc%d-%d" % (sender, number)):
                    load.sent.add(b"grpc%d-%d" % (sender, number))
                await asyncio.sleep(0.02)

    async def _send_in_order(self, load: Load, group: str) -> None:
        async with self._channel(load, f"ordered-{group}") as call:
            for number in itertools.count():
                if not load.is_sending:
                    return
                if await self._send(call, FIFO, ordered_body(group, number), message_group=group):
                    load.in_groups[group].append(number)
                await asyncio.sleep(0.1)

    async def _send(self, call: Call, topic: str, data: bytes, **system: str) -> bool:
        system = {"message_id": f"01{data.hex()}", **system}
        message = {"topic": {"name": topic}, "body": data, "system_properties": system}
        reply = await call("SendMessage", messages=[message])
        return reply is not None and reply.status.code == OK

    async def _consume(self, load: Load, group: str, topic: str) -> None:
        subscription = {"topic": {"name": topic}, "expression": {"type": 1, "expression": "*"}}
        settings = {"group": {"name": group}, "subscriptions": [subscription]}
        async with self._channel(load, f"{group}-{random.randrange(10**9)}", subscription=settings) as call:
            queue = {"topic": {"name": topic}, "id": -1, "broker": {"name": BROKER}}
            fields = {"group": {"name": group}, "message_queue": queue, "batch_size": 16}
            fields |= {"invisible_duration": {"seconds": INVISIBLE_S}, "long_polling_timeout": {"seconds": 5}}
            while True:
                messages = await call("ReceiveMessage", **fields, filter_expression={"type": 1, "expression": "*"})
                for message in messages or ():
                    if not await self._consume_message(load, call, group, message):
                        break  # those after it come again, in their order

    async def _consume_message(self, load: Load, call: Call, group: str, message: Any) -> bool:
        """Consume a message; return whether its acknowledgement was answered."""
        ledger, system = load.ledgers[group], message.system_properties
        taken_ms = int(system.receipt_handle.split()[1])
        if group == ORDERED:
            load.deliver_in_order(message.body, taken_ms)
        else:
            ledger.deliver(message.body, taken_ms)
            ledger.asked.add(message.body)
        entry = {"message_id": system.message_id, "receipt_handle": system.receipt_handle}
        reply = await call("AckMessage", group={"name": group}, topic=message.topic, entries=[entry])
        if reply is None or reply.status.code != OK:
            return False
        ledger.answered(message.body, taken_ms, now_ms())
        return True

    @contextlib.asynccontextmanager
    async def _channel(self, load: Load, client_id: str, **settings: Any) -> AsyncIterator[Call]:
        """Yield a function that calls the port: it returns the reply, the received messages, or None if the call failed."""
        metadata = [("x-mq-client-id", client_id), ("x-mq-language", "PYTHON")]
        async with grpc.aio.insecure_channel(self._endpoints, options=RECONNECT) as channel:

            async def call(name: str, **fields: Any) -> Any:
                request, response = getattr(api, f"{name}Request"), getattr(api, f"{name}Response")
                path, encode, decode = f"/{api.SERVICE}/{name}", request.SerializeToString, response.FromString
                received: list[Any] = []
                try:
                    if name != "ReceiveMessage":
                        method = channel.unary_unary(path, encode, decode)
                        return await method(request(**fields), timeout=10, metadata=metadata)
                    stream = channel.unary_stream(path, encode, decode)(
                        request(**fields), timeout=15, metadata=metadata
                    )
                    async for reply in stream:
                        if reply.HasField("message"):
                            received.append(reply.message)
                        elif reply.HasField("status") and reply.status.code not in (OK, NO_MESSAGE):
                            load.failed[str(reply.status.code)] += 1
                            await asyncio.sleep(0.1)
                except grpc.aio.AioRpcError as error:
                    load.failed[error.code().name] += 1
                    await asyncio.sleep(0.1)
                return received or None

            async def keep_settings() -> None:
                """Send the settings of a consumer, again after each restart: Java's proxy receives nothing without."""
                command = api.TelemetryCommand
                path = f"/{api.SERVICE}/Telemetry"
                method = channel.stream_stream(path, command.SerializeToString, command.FromString)
                while True:
                    stream = method(metadata=metadata)
                    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        await stream.write(command(settings={"client_type": SIMPLE_CONSUMER, **settings}))
                        while await stream.read() is not grpc.aio.EOF:
                            pass
                    await asyncio.sleep(0.2)

            async with asyncio.TaskGroup() as tasks:
                keeping = tasks.create_task(keep_settings()) if settings else None
                try:
                    yield call
                finally:
                    if keeping is not None:
                        keeping.cancel()


class OfficialClients:
    """The client for Java: producers, a simple consumer, a push consumer, and one of the ordered group.

    Args:
        jar: The client with its dependencies.
        home: Directory for its log.
    """

    groups = (GRPC, PUSH)

    def __init__(self, endpoints: str, jar: Path, home: Path) -> None:
        java = [
            "java",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-Xmx256m",
            f"-Duser.home={home}",
            "-cp",
            str(jar),
        ]
        groups = (GRPC, PUSH, ORDERED, str(SENDERS), str(MESSAGE_GROUPS), str(INVISIBLE_S))
        self._command = [*java, str(PROGRAM), endpoints, MIXED, FIFO, *groups]
        self._log = home / "official.log"
        self._process: asyncio.subprocess.Process | None = None
        self._has_stopped = asyncio.Event()  # to send

    async def produce(self, load: Load) -> None:
        """Wait for the end of the load, and stop the producers."""
        while load.is_sending:
            await asyncio.sleep(0.1)
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"stop\n")
        await self._has_stopped.wait()

    async def consume(self, load: Load) -> None:
        """Run the program, and note what it prints."""
        pipe = asyncio.subprocess.PIPE
        with self._log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe, stderr=log)
        self._process = process
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                self._note(load, line.decode().split())
            raise AssertionError(f"the official client has ended: {self._log.read_text()[-2000:]}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _note(self, load: Load, event: list[str]) -> None:
        match event:
            case ["sent", body]:
                load.sent.add(body.encode())
            case ["ordered", name, number]:
                load.in_groups[name].append(int(number))
            case ["delivered", group, body, taken_ms]:
                load.ledgers[group].deliver(body.encode(), int(taken_ms))
                load.ledgers[group].asked.add(body.encode())
            case ["pushed", group, body] if group == ORDERED:
                load.deliver_in_order(body.encode())
            case ["pushed", group, body]:
                load.ledgers[group].deliver(body.encode())
                load.ledgers[group].asked.add(body.encode())
            case ["acknowledged", group, body, taken_ms, at_ms]:
                load.ledgers[group].answered(body.encode(), int(taken_ms), int(at_ms))
            case ["failed", name]:
                load.failed[name] += 1
            case ["stopped"]:
                self._has_stopped.set()
            case _:
                raise AssertionError(event)

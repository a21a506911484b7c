"""Heartbeat, Telemetry and NotifyClientTermination: who takes part, with which settings. [ClientActivity]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from ariane.errors import ReplyError
from ariane.protocol.codes import ResponseCode
from ariane.proxy import api
from ariane.proxy.calls.call import Call, ProxySettings
from ariane.proxy.client_sessions import COMMANDS_MAX, Stream
from ariane.proxy.conversion import client_settings, field_checks, grpc_statuses
from ariane.proxy.conversion.client_settings import CONSUMERS, ClientKind
from ariane.proxy.message_service import MessageService

RESULTS = ("thread_stack_trace", "verify_message_result")  # of commands that the server has sent


@dataclass(frozen=True, kw_only=True)
class PresenceCalls:
    """Calls by which clients come and go."""

    service: MessageService
    settings: ProxySettings
    now_ms: Callable[[], int]

    async def heartbeat(self, request: Any, call: Call) -> Any:
        """Refresh the memberships of a client. One whose settings are not known yet has those that its calls name."""
        kind = client_settings.client_kind(request.client_type)
        group = field_checks.group_name(request.group) if kind in CONSUMERS else ""
        await self._join(kind, group, call)
        return api.HeartbeatResponse(status=grpc_statuses.ok())

    async def notify_client_termination(self, request: Any, call: Call) -> Any:
        """End the session of a client, and with it its memberships."""
        if request.HasField("group"):
            field_checks.group_name(request.group)
        call.session.close()
        return api.NotifyClientTerminationResponse(status=grpc_statuses.ok())

    async def telemetry(self, commands: AsyncIterator[Any], call: Call) -> AsyncIterator[Any]:
        """Answer the settings of a client, and send it the commands of the server, until either side ends the stream.

        A second stream of the client replaces the first for commands.
        """
        stream: Stream = asyncio.Queue(COMMANDS_MAX)
        reader = asyncio.create_task(self._read(commands, call, stream))
        try:
            while (command := await stream.get()) is not None:
                yield command
            if reader.done():
                reader.result()  # raises why the client's commands cannot be served
        finally:
            reader.cancel()
            if call.session.stream is stream:
                call.session.stream = None

    async def _read(self, commands: AsyncIterator[Any], call: Call, stream: Stream) -> None:
        try:
            async for command in commands:
                if command.HasField("settings"):
                    answer = await self._apply(command.settings, call)
                    call.session.stream = stream
                    await stream.put(answer)
                elif (name := command.WhichOneof("command")) in RESULTS:
                    call.session.on_result(getattr(command, name).nonce, command)
        finally:
            await stream.put(None)

    async def _apply(self, settings: Any, call: Call) -> Any:
        reported = client_settings.parse(settings, self.now_ms())
        for topic in reported.topics:  # a producer receives half messages of its topics to check them
            await self._check_permission(topic, call)
        call.session.settings = reported
        await self._join(reported.kind, reported.group, call)
        group = await self.service.group(call.caller, reported.group) if reported.kind in CONSUMERS else None
        answered = client_settings.answer(settings, reported, self.settings.send_limits.body_bytes_max, group)
        return api.TelemetryCommand(status=grpc_statuses.ok(), settings=answered)

    async def _check_permission(self, topic: str, call: Call) -> None:
        try:
            await self.service.topic(call.caller, topic)
        except ReplyError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise

    async def _join(self, kind: ClientKind, group: str, call: Call) -> None:
        await self.service.heartbeat(call.caller, call.session.heartbeat(kind, group))

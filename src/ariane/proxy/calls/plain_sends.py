"""SendMessage calls that need no decision, all of a client's in a turn: stored together, as plain sends of the remoting port are.

PlainSends ─ topics ─▶ queues ─▶ frames ─▶ MessageService.send_turn ─▶ responses ─▶ replies
               └ of a topic that decides, or not plain after all ─▶ served by themselves, as other calls
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ariane.errors import ReplyError
from ariane.kernels.grpc_port import Event, FailedSend, GrpcPort, PlainSends
from ariane.model.topic import PERM_WRITE, TopicConfig, is_system_topic
from ariane.model.topic_attributes import TopicMessageType
from ariane.net.replies import Peer, ServedTurn
from ariane.proxy import api
from ariane.proxy.calls.call import Call, ProxySettings, accepted_kinds
from ariane.proxy.conversion import grpc_statuses
from ariane.proxy.traces.message_traces import MessageTraces


class StoredRun(NamedTuple):
    """Plain sends that were stored together."""

    responses: bytes | Awaitable[bytes]
    frames: tuple[int, int]
    """Positions of their first frame, and of the frame after the last one."""
    started_ms: int


class PlainSendService(Protocol):
    """Stores sends without a decision about each. [BrokerMessageService]"""

    def plain_topic(self, name: str) -> TopicConfig | None:
        """Return a topic that all clients may send to; None if `MessageService.topic` has to decide."""
        ...

    def send_turn(self, frames: bytes, position: int, peer: Peer) -> ServedTurn | None:
        """Store the plain sends in `frames` from `position` on. Return None if the next one has to be served by itself."""
        ...


@dataclass(frozen=True, kw_only=True)
class PlainSendCalls:
    """Stores the plain sends of a turn."""

    service: PlainSendService
    settings: ProxySettings
    traces: MessageTraces
    now_ms: Callable[[], int]
    turn: itertools.count[int]  # of SendCalls: messages without a group take the queues in turn

    def serve(self, sends: PlainSends, call: Call) -> tuple[list[StoredRun], list[Event]]:
        """Store plain sends. Return the runs that `answer` is called with, and the calls that have to be served by themselves.

        Args:
            sends: Of one client.
            call: The first of them, with the session of the client.
        """
        frames = sends.frames([self._queues(topic, call) for topic in sends.topics])
        position, runs, alone = 0, [], []
        while position < len(frames):
            started_ms = self.now_ms()
            turn = self.service.send_turn(frames, position, call.caller.peer)
            if turn is None:
                position, event = sends.take_at(position, len(frames))
                alone.append(event)
                continue
            runs.append(StoredRun(turn.responses, (position, turn.position), started_ms))
            position = turn.position
        return runs, [*alone, *sends.take_rest()]

    def answer(
        self, sends: PlainSends, call: Call, port: GrpcPort, responses: bytes, started_ms: int
    ) -> list[FailedSend]:
        """Answer the sends of a run, and return those that were not stored as they should be."""
        failed, records = sends.answer(port, responses, self.traces.plain_fields(started_ms))
        self.traces.sent_plain(call.caller.peer, records)
        return failed

    def _queues(self, name: str, call: Call) -> tuple[int, int] | None:
        """Return the queue of the next message of a topic, and how many its messages take in turn; None if a call decides."""
        topic = self.service.plain_topic(name)
        if topic is None or is_system_topic(name) or self.traces.is_own(name):
            return None
        is_writable = topic.perm & PERM_WRITE and topic.write_queue_nums
        if not is_writable or TopicMessageType.NORMAL not in accepted_kinds(topic, self.settings):
            return None
        call.session.note_topic(name)
        return next(self.turn) % topic.write_queue_nums, topic.write_queue_nums


def failed_reply(code: int, remark: str, call: Call) -> Any:
    """Return the reply to a send that was not stored as it should be."""
    status = grpc_statuses.of_refusal(call.refusal_of(ReplyError(code, remark)))
    return api.SendMessageResponse(status=status, entries=[api.SendResultEntry(status=status)])

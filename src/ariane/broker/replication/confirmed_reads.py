"""Reads of a broker with confirmedReads: refused until the log that its start found is confirmed.

    log at the start   | dispatched to the queues; its last records may be on this broker only |
    later records      get their queue entries once they are confirmed (`ReplicationSource.readable_end`)

Without this, a consumer could read the last records of a master that was killed, which no slave has: after a promotion their
numbers belong to other messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence

from ariane.errors import ReplyError
from ariane.net.connection import Handler, HandlerResult, Peer, Reply
from ariane.net.replies import AckHandler, ServedTurn, TurnHandler
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.pop import AckedDelivery
from ariane.store.message_store import MessageStore

# Requests whose responses have messages, or depend on the end of a queue.
READ_CODES = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    }
)
REMARK = (
    "messages from before the start of this broker are not confirmed by the other brokers of its set yet: try again"
)


class ConfirmedReads:
    """Opens reads once the log of the start is confirmed."""

    def __init__(self, store: MessageStore) -> None:
        self._source = store.replication_source
        self._start_end = store.commit_log_max
        self._is_open = False  # stays true

    @property
    def is_open(self) -> bool:
        """Return whether reads are served."""
        if not self._is_open:
            self._is_open = self._source.confirmed is None or self._source.confirmed >= self._start_end
        return self._is_open

    def with_checks(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the handlers, with a check before each read; unchanged without confirmedReads."""
        if self._source.confirmed is None:
            return dict(handlers)
        return {code: self._with_check(serve) if code in READ_CODES else serve for code, serve in handlers.items()}

    def with_turn_check(self, turns: TurnHandler) -> TurnHandler:
        """Return the fast path of pulls, which serves none while reads are refused."""
        return turns if self._source.confirmed is None else _CheckedTurns(turns, self)

    def guard_acks(self, acknowledge: AckHandler) -> AckHandler:
        """Return the fast path of acknowledgements, which serves none while reads are refused."""
        if self._source.confirmed is None:
            return acknowledge

        def checked(deliveries: Sequence[AckedDelivery]) -> Awaitable[None] | None:
            if not self.is_open:
                raise ReplyError(ResponseCode.SERVICE_NOT_AVAILABLE, REMARK)
            return acknowledge(deliveries)

        return checked

    def _with_check(self, serve: Handler) -> Handler:
        def checked(command: Command, peer: Peer) -> HandlerResult:
            return serve(command, peer) if self.is_open else Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=REMARK)

        return checked


class _CheckedTurns:
    """Pulls by turns, once reads are open."""

    def __init__(self, turns: TurnHandler, reads: ConfirmedReads) -> None:
        self._turns, self._reads = turns, reads

    def serve(self, data: bytes, position: int, peer: Peer, waited_s: float) -> ServedTurn | None:
        """Serve the pulls in `data` from `position` on. [TurnHandler.serve]"""
        return self._turns.serve(data, position, peer, waited_s) if self._reads.is_open else None

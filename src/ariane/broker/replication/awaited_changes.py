"""Responses that wait until the members in sync have a change of the broker's state: a promoted member must not undo it.

topics, groups, offsets set by tools, queue locks    the response waits for the members; without it the outcome is unknown
sends that create a topic                            no wait for the change: a SYNC_MASTER waits for the record, which follows it
offsets that consumers commit                        no wait: after a switch messages are consumed again, at least once
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from ariane.broker.lifecycle.offset_waiters import OffsetWaiter
from ariane.net.connection import Handler, HandlerResult, LateReply, Peer, Reply
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command

AWAITED_CODES = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
    }
)
UNCONFIRMED = Reply(
    ResponseCode.SERVICE_NOT_AVAILABLE,
    remark="the change is stored here, but not confirmed by the other brokers of this set within slaveTimeout: try again",
)


def with_replicated_replies(
    handlers: Mapping[int, Handler], wait_changed: Callable[[], OffsetWaiter[bool] | None]
) -> dict[int, Handler]:
    """Return handlers whose responses wait for the members in sync, if they promise a change."""

    async def reply_when_replicated(handled: Awaitable[Reply | LateReply | None]) -> Reply | LateReply | None:
        reply = await handled
        waiter = wait_changed()
        return reply if waiter is None or await waiter else UNCONFIRMED

    async def wait(waiter: OffsetWaiter[bool], reply: Reply | None) -> Reply | None:
        return reply if await waiter else UNCONFIRMED

    def guard(serve: Handler) -> Handler:
        def guarded(command: Command, peer: Peer) -> HandlerResult:
            handled = serve(command, peer)
            if handled is not None and not isinstance(handled, Reply):
                return reply_when_replicated(handled)
            waiter = wait_changed()
            return handled if waiter is None else wait(waiter, handled)

        return guarded

    return {code: guard(serve) if code in AWAITED_CODES else serve for code, serve in handlers.items()}

"""END_TRANSACTION (37) and RESUME_CHECK_HALF_MESSAGE (323). [EndTransactionProcessor, AdminBrokerProcessor]"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ariane.broker.transaction_service import TransactionService
from ariane.errors import FlushFailed, MessageRefused, ProtocolError, ReplyError, StoreError
from ariane.model import ids
from ariane.net.connection import Handled, Handler, Peer, Reply
from ariane.net.peer_log import PeerLog
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import typed
from ariane.protocol.requests.messaging import COMMIT, ROLLBACK, EndTransactionHeader, ResumeCheckHalfMessage

log = logging.getLogger("ariane.broker.transaction_service")
_peer_log = PeerLog(log)

Durable = Callable[[int], Awaitable[bool]]


def handlers(transactions: TransactionService, durable: Durable | None, *, is_slave: bool) -> dict[int, Handler]:
    """`durable` waits until the log is flushed up to an offset; None when answers do not wait for that."""

    no = Reply(ResponseCode.SLAVE_NOT_AVAILABLE, remark="transactions are the master's, and this broker is a slave")

    def end(command: Command, peer: Peer) -> Handled:
        request = typed(command, EndTransactionHeader)
        return no if is_slave else end_transaction(transactions, durable, request, command, peer)

    def resume(command: Command, peer: Peer) -> Handled:
        if is_slave:
            return no
        return _resume(transactions, typed(command, ResumeCheckHalfMessage))

    return {RequestCode.END_TRANSACTION: end, RequestCode.RESUME_CHECK_HALF_MESSAGE: resume}


def end_transaction(
    transactions: TransactionService,
    durable: Durable | None,
    request: EndTransactionHeader,
    command: Command,
    peer: Peer,
) -> Handled:
    """Commit or roll back. A producer that does not know gets no answer, as in 4.9.4: it is asked later."""
    if request.commit_or_rollback not in (COMMIT, ROLLBACK):
        remark = command.remark or "no remark"
        _peer_log.line(
            logging.INFO, peer.ip, _now(), "%s does not know yet (%s): %s", peer.addr, request.msg_id, remark
        )
        return None
    if not transactions.is_ready:
        return _when_ready(transactions, durable, request)
    end = _ended(transactions, request)
    return end if isinstance(end, Reply) else _settled(durable, end)


async def _when_ready(
    transactions: TransactionService, durable: Durable | None, request: EndTransactionHeader
) -> Reply:
    await transactions.ready()
    end = _ended(transactions, request)
    settled = end if isinstance(end, Reply) else _settled(durable, end)
    return settled if isinstance(settled, Reply) else await settled


def _now() -> float:
    return asyncio.get_running_loop().time()


def _ended(transactions: TransactionService, request: EndTransactionHeader) -> int | Reply:
    """Up to where the log has to be flushed, or the answer that needs no flush."""
    try:
        end = transactions.end(request)
    except ReplyError as error:
        group = request.producer_group
        _peer_log.warning(group, _now(), "transaction %s of %s: %s", request.msg_id, group, error.remark)
        return Reply(error.code, remark=error.remark)
    except MessageRefused as error:
        return Reply(ResponseCode.MESSAGE_ILLEGAL, remark=str(error))
    except StoreError as error:
        return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
    return Reply() if end is None else end


def _settled(durable: Durable | None, end: int) -> Reply | Awaitable[Reply]:
    return Reply() if durable is None else _when_durable(durable, end)


async def _when_durable(durable: Durable, end: int) -> Reply:
    """A late flush counts as success, as in 4.9.4: the message is stored."""
    try:
        await durable(end)
    except FlushFailed as error:
        return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
    return Reply()


async def _resume(transactions: TransactionService, request: ResumeCheckHalfMessage) -> Reply:
    try:
        _, offset = ids.parse_offset_message_id(request.msg_id or "")
        await transactions.ready()
        transactions.resume(offset)
    except ReplyError as error:
        return Reply(error.code, remark=error.remark)
    except (ProtocolError, StoreError, MessageRefused) as error:
        return Reply(ResponseCode.SYSTEM_ERROR, remark=f"the half message is not put back: {error}")
    return Reply()

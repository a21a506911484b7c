"""END_TRANSACTION (37) and RESUME_CHECK_HALF_MESSAGE (323). [EndTransactionProcessor, AdminBrokerProcessor]"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from ariane.broker.collaborators import Durability
from ariane.broker.lifecycle.offset_waiters import OffsetWaiter
from ariane.broker.transactions.transaction_service import TransactionService
from ariane.errors import FlushFailed, MessageRefused, ProtocolError, ReplyError, StoreError
from ariane.model import ids
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.net.peer_log import PeerLog
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import COMMIT, ROLLBACK, EndTransactionHeader, ResumeCheckHalfMessage

log = logging.getLogger("ariane.broker.transactions.transaction_service")
_peer_log = PeerLog(log)

_REFUSAL = Reply(ResponseCode.SLAVE_NOT_AVAILABLE, remark="this broker is a slave: transactions end at its master")


class TransactionHandler:
    """Commits and rolls back transactions."""

    def __init__(self, *, transactions: TransactionService, durability: Durability, is_slave: bool) -> None:
        self._transactions = transactions
        self._durability = durability
        self._is_slave = is_slave

    def end(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle END_TRANSACTION.

        Returns:
            The reply; an awaitable of it until the open transactions are rebuilt, or in synchronous flush mode. None for a
            producer that does not know the outcome yet: as in 4.9.4 it gets no response and is asked later.
        """
        request = decode_header(command, EndTransactionHeader)
        if self._is_slave:
            return _REFUSAL
        if request.commit_or_rollback not in (COMMIT, ROLLBACK):
            remark = command.remark or "no remark"
            text = "%s does not know the outcome of transaction %s yet: %s"
            _peer_log.line(logging.INFO, peer.ip, _loop_time(), text, peer.addr, request.msg_id, remark)
            return None
        if not self._transactions.is_ready:
            return self._end_when_ready(request)
        return self._end(request)

    def resume(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle RESUME_CHECK_HALF_MESSAGE: check a half message again from its first attempt on."""
        if self._is_slave:
            return _REFUSAL
        return self._resume(decode_header(command, ResumeCheckHalfMessage))

    async def _end_when_ready(self, request: EndTransactionHeader) -> Reply:
        await self._transactions.ready()
        reply = self._end(request)
        return reply if isinstance(reply, Reply) else await reply

    def _end(self, request: EndTransactionHeader) -> Reply | Awaitable[Reply]:
        try:
            end_offset = self._transactions.end(request)
        except ReplyError as error:
            group = request.producer_group
            text = "Could not end transaction %s of %s: %s"
            _peer_log.warning(group, _loop_time(), text, request.msg_id, group, error.remark)
            return Reply(error.code, remark=error.remark)
        except MessageRefused as error:
            return Reply(ResponseCode.MESSAGE_ILLEGAL, remark=str(error))
        except StoreError as error:
            return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
        if end_offset is None:
            return Reply()  # completed before: nothing was appended that would have to be flushed
        flushed = self._durability.wait_flushed(end_offset)
        return Reply() if flushed is None else flushed.then(_flushed_reply)

    async def _resume(self, request: ResumeCheckHalfMessage) -> Reply:
        try:
            _, offset = ids.parse_offset_message_id(request.msg_id or "")
            await self._transactions.ready()
            self._transactions.resume(offset)
        except ReplyError as error:
            return Reply(error.code, remark=error.remark)
        except (ProtocolError, StoreError, MessageRefused) as error:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=f"Could not resume the checks of the half message: {error}")
        return Reply()


def _flushed_reply(flushed: OffsetWaiter[bool]) -> Reply:
    # A flush timeout counts as success, as in 4.9.4: the message is stored.
    try:
        flushed.result()
    except FlushFailed as error:
        return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
    return Reply()


def _loop_time() -> float:
    return asyncio.get_running_loop().time()

"""EndTransaction. [EndTransactionActivity] Checks of transactions leave by the Telemetry stream (`client_sessions`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ariane.protocol.requests.messaging import COMMIT, ROLLBACK, UNKNOWN, EndTransactionHeader
from ariane.proxy import api
from ariane.proxy.calls.call import Call
from ariane.proxy.conversion import field_checks, grpc_statuses
from ariane.proxy.message_service import MessageService
from ariane.proxy.traces.message_traces import MessageTraces
from ariane.proxy.transaction_ids import parse_transaction_id

RESOLUTIONS = {1: COMMIT, 2: ROLLBACK}  # TransactionResolution
SERVER_CHECK = 2  # TransactionSource


@dataclass(frozen=True, kw_only=True)
class TransactionCalls:
    """Calls that decide about half messages."""

    service: MessageService
    traces: MessageTraces

    async def end_transaction(self, request: Any, call: Call) -> Any:
        """Commit or roll back a transaction. One that is unknown yet is checked later."""
        topic = field_checks.topic_name(request.topic)
        half = parse_transaction_id(request.transaction_id)
        header = EndTransactionHeader(
            producer_group=topic,  # as `send_calls` stores it: the topic has to be that of the message
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.log_offset,
            commit_or_rollback=RESOLUTIONS.get(request.resolution, UNKNOWN),
            from_transaction_check=request.source == SERVER_CHECK,
            msg_id=request.message_id,
            transaction_id=half.message_id,
        )
        await self.service.end_transaction(call.caller, half.broker, header)
        self.traces.decided(call.caller.peer, topic, header)
        return api.EndTransactionResponse(status=grpc_statuses.ok())

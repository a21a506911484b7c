"""LIST_IN_FLIGHT (14003, of Ariane): messages that were delivered to a group by POP and not acknowledged, for tools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ariane.broker.delivery.pop.delivery_clients import DeliveryClients
from ariane.broker.state.group_members import GroupMembers
from ariane.broker.state.pop_queue import TakenMessage
from ariane.broker.state.pop_table import PopTable, QueueKey
from ariane.errors import ReplyError
from ariane.model.message import UNIQ_KEY
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.protocol import fastjson
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.pop import IN_FLIGHT_MAX, InFlightMessage, InFlightMessages, ListInFlight
from ariane.store.message_store import MessageStore

SLICE = 50  # messages read without a pause: about 2 ms
SLICE_BYTES = 1 << 20  # of their records, which a client may fill with bodies of megabytes


@dataclass(frozen=True, kw_only=True)
class InFlightHandler:
    """Lists messages in flight."""

    table: PopTable
    members: GroupMembers  # ids of connected clients
    clients: DeliveryClients
    store: MessageStore  # ids of messages

    def list_messages(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle LIST_IN_FLIGHT: how many there are, and the first ones of each queue, which hold back the group's offset."""
        request = decode_header(command, ListInFlight)
        if not 0 < request.limit <= IN_FLIGHT_MAX:
            raise ReplyError(
                ResponseCode.INVALID_PARAMETER, f"Invalid limit {request.limit}: expected 1 to {IN_FLIGHT_MAX}"
            )
        return self._list(request)

    async def _list(self, request: ListInFlight) -> Reply:
        queues = sorted(self.table.keys_of(request.consumer_group, request.topic or None))
        total = sum(len(queue.taken) for key in queues if (queue := self.table.get(key)) is not None)
        messages: list[InFlightMessage] = []
        count = size = 0  # read since the last pause
        for key, offset, message in list(islice(self._in_turn(queues), request.limit)):
            data = self.store.read_queue_record(key.topic, key.queue_id, offset)
            messages.append(self._describe(key, offset, message, data))
            count, size = count + 1, size + len(data or b"")
            if count == SLICE or size >= SLICE_BYTES:
                count = size = 0
                await asyncio.sleep(0)
        messages.sort(key=lambda message: (message.topic, message.queue_id, message.offset))
        return Reply(body=fastjson.write(InFlightMessages(total, tuple(messages))))

    def _in_turn(self, keys: list[QueueKey]) -> Iterator[tuple[QueueKey, int, TakenMessage]]:
        """Yield the messages of queues by turns: one of each, then the next of each."""
        queues = [(key, iter(queue.taken.items())) for key in keys if (queue := self.table.get(key)) is not None]
        while queues:
            remaining = []
            for key, messages in queues:
                if (entry := next(messages, None)) is not None:
                    yield key, *entry
                    remaining.append((key, messages))
            queues = remaining

    def _describe(self, key: QueueKey, offset: int, message: TakenMessage, data: bytes | None) -> InFlightMessage:
        client = self.clients.get(key, message.taken_ms)
        group = self.members.consumers.get(key.group)
        member = None if client is None or group is None else group.members.get(client.id)
        return InFlightMessage(
            *key[1:],
            offset,
            *message,
            message_id=None if data is None else record.decode(data).property_map().get(UNIQ_KEY),
            client_id=None if member is None else member.client_id,
            client_addr=None if client is None else client.addr,
        )

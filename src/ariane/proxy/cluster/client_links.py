"""The connections of clients to brokers: each client has its own, as a client of 4.x has, so that brokers see it as one.

    call of a client ─▶ its link to the broker ─▶ memberships, limits, checks of its account, parked requests that end with it
    client ◀─ its session ◀─ its link ◀─ transaction checks and notices of the broker

The links of a client end with its session. Messages that are released after that use a link that ends with the request.
"""

from __future__ import annotations

import contextlib
import functools
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

from ariane.errors import ArianeError, ConnectionLost
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.replies import Handler, Peer, Reply
from ariane.net.server import RemotingServer
from ariane.protocol import signing
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.callbacks import ResetOffset, reset_table
from ariane.protocol.requests.messaging import UpdateConsumerOffset
from ariane.protocol.signing import Credentials
from ariane.proxy.client_sessions import BROKER
from ariane.proxy.message_service import Caller

ANSWER_MS = 3_000  # of a client, to a request of a broker
ANSWERED = (
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)


class _LinkKey(NamedTuple):
    """Identifies a link of a client."""

    broker: str
    credentials: Credentials | None  # the keys of an account may change while its client is connected


class ClientLinks:
    """Opens and ends links.

    Args:
        server: Reaches the sessions of clients.
        tls: Of connections to brokers; None: plain ones.
    """

    def __init__(self, server: RemotingServer, tls: ssl.SSLContext | None) -> None:
        self._server = server
        self._tls = tls
        self._links: dict[int, dict[_LinkKey, ConnectionPool]] = {}  # by the number of the client

    @property
    def count(self) -> int:
        """Return how many links are open."""
        return sum(map(len, self._links.values()))

    @contextlib.asynccontextmanager
    async def link(self, caller: Caller, broker: str) -> AsyncIterator[ConnectionPool]:
        """Yield the link of a client to a broker."""
        number = caller.peer.id
        if not self._server.is_connected(number):
            async with self._create(caller, broker) as link:
                yield link
            return
        links, key = self._links.setdefault(number, {}), _LinkKey(broker, caller.credentials)
        if key not in links:
            links[key] = self._create(caller, broker)
        yield links[key]

    def end(self, peer: Peer) -> None:
        """Close the links of a client whose session has ended."""
        for link in self._links.pop(peer.id, {}).values():
            link.close()

    def _create(self, caller: Caller, broker: str) -> ConnectionPool:
        credentials = caller.credentials
        return ConnectionPool(
            self._handlers(caller, broker),
            sign=None if credentials is None else functools.partial(signing.sign, credentials),
            language=caller.language,
            tls=self._tls,
        )

    # --- requests of brokers ---

    def _handlers(self, caller: Caller, name: str) -> dict[int, Handler]:
        number = caller.peer.id

        async def answer(command: Command, broker: Peer) -> Reply:
            try:
                response = await self._server.request(
                    number, command.code, command.field_map(), command.body, timeout_ms=ANSWER_MS
                )
            except ConnectionLost as error:
                raise ArianeError(str(error)) from error
            return Reply(response.code, response.field_map(), response.remark, body=response.body)

        def check_transaction(command: Command, broker: Peer) -> None:
            fields = {**command.field_map(), BROKER: name}
            with contextlib.suppress(ConnectionLost):  # the broker checks with another producer later
                self._server.one_way(number, command.code, fields, command.body)

        async def reset_offsets(command: Command, broker: Peer) -> None:
            # The client has no offsets of its own: the reset is that of the broker, for groups that take messages.
            group = decode_header(command, ResetOffset).group
            async with self.link(caller, name) as link:
                for queue, offset in reset_table(command.body).items():
                    commit = UpdateConsumerOffset(group, queue.topic, queue.queue_id, offset)
                    await link.one_way(broker.addr, RequestCode.UPDATE_CONSUMER_OFFSET, commit)

        def ignore(command: Command, broker: Peer) -> None:
            """Drop a notice of changes in a group: clients own no queues."""

        handlers: Mapping[int, Handler] = {
            RequestCode.CHECK_TRANSACTION_STATE: check_transaction,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: reset_offsets,
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: ignore,
        }
        return {**handlers, **dict.fromkeys(ANSWERED, answer)}

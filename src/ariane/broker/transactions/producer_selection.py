"""Selection of the producer that a check is sent to: the connected ones of a group, round robin.

[ProducerManager.getAvailableChannel, Broker2Client]
"""

from __future__ import annotations

import logging
from typing import Final

from ariane.broker.state.group_members import GroupMembers
from ariane.errors import ConnectionLost
from ariane.net.server import RemotingServer
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.messaging import CheckTransactionState

log = logging.getLogger("ariane.broker.transactions.transaction_service")

BUSY: Final = -1
GROUPS_MAX = 10_000  # groups whose last producer is remembered; forgetting it only costs some fairness


class ProducerSelector:
    """Selects producers among `members`, and sends requests to them through `server`."""

    def __init__(self, members: GroupMembers, server: RemotingServer) -> None:
        self._members = members
        self._server = server
        self._turns: dict[str, int] = {}  # number of the last turn by group

    def pick(self, group: str) -> int | None:
        """Return the connection of the group's next producer; None if none is online, BUSY if none reads what it is sent."""
        online = [peer_id for peer_id in self._members.producers.get(group, ()) if self._server.is_connected(peer_id)]
        if not online:
            return None
        if len(self._turns) >= GROUPS_MAX:
            self._turns.clear()
        turn = self._turns[group] = self._turns.get(group, -1) + 1
        for step in range(len(online)):
            peer_id = online[(turn + step) % len(online)]
            if self._server.is_writable(peer_id):
                return peer_id
        return BUSY

    def send_check(self, peer_id: int, header: CheckTransactionState, body: bytes) -> None:
        """Send CHECK_TRANSACTION_STATE, one-way. If the producer has disconnected, the next round selects another."""
        try:
            self._server.one_way(peer_id, RequestCode.CHECK_TRANSACTION_STATE, encode_header(header), body)
        except ConnectionLost as error:
            log.info("Could not send the check of half message %d: %s", header.tran_state_table_offset, error)

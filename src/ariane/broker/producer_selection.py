"""Whom to ask: the connected producers of a group, in turn. [ProducerManager.getAvailableChannel, Broker2Client]"""

from __future__ import annotations

import logging
from typing import Final

from ariane.broker.state.group_members import GroupMembers
from ariane.errors import ConnectionLost
from ariane.net.server import RemotingServer
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import fields
from ariane.protocol.requests.messaging import CheckTransactionState

log = logging.getLogger("ariane.broker.transaction_service")

BUSY: Final = -1
GROUPS_MAX = 10_000  # whose turns are remembered; forgetting them costs nothing but some fairness


class ProducerSelector:
    """The producers among `members`, reached through `server`."""

    def __init__(self, members: GroupMembers, server: RemotingServer) -> None:
        self._members = members
        self._server = server
        self._turns: dict[str, int] = {}

    def pick(self, group: str) -> int | None:
        """A connection of the group whose turn it is; None when nobody is online, BUSY when nobody reads what is sent."""
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
        """CHECK_TRANSACTION_STATE, one-way. Who left meanwhile is not asked: the next round asks another."""
        try:
            self._server.one_way(peer_id, RequestCode.CHECK_TRANSACTION_STATE, fields(header), body)
        except ConnectionLost as error:
            log.info("half message %d is not asked about: %s", header.tran_state_table_offset, error)

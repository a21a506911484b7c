"""Who is there: clients that come, leave or fall silent, and what the others of their groups are told.

[ClientHousekeepingService]
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ariane.broker.dynamic_config import DynamicConfig
from ariane.broker.state.filter_servers import FilterServers
from ariane.broker.state.group_members import GroupMembers
from ariane.errors import ConnectionLost
from ariane.net.connection import Peer
from ariane.net.server import RemotingServer
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import fields
from ariane.protocol.requests.clients import GroupRef

log = logging.getLogger("ariane.broker")


class ClientRegistry:
    """The members of all groups, and the filter servers. `server` reaches their connections."""

    def __init__(self, settings: DynamicConfig, monotonic_ms: Callable[[], float]) -> None:
        self.members = GroupMembers()
        self.filter_servers = FilterServers()
        self.server: RemotingServer | None = None
        self._settings = settings
        self._monotonic_ms = monotonic_ms

    def notify_group_changed(self, group: str) -> None:
        """Tell the members of a consumer group to share its queues out again."""
        if self.server is None or not self._settings.current.notify_consumer_ids_changed_enable:
            return
        header = fields(GroupRef(group))
        for peer_id in self.members.consumer_peers(group):
            try:
                self.server.one_way(peer_id, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)
            except ConnectionLost as error:
                log.info("%s of group %s is not told of the change: %s", peer_id, group, error)

    def on_connection_lost(self, peer: Peer) -> None:
        """A connection is over."""
        self.filter_servers.remove_peer(peer.id)
        for group in self.members.remove_peer(peer.id):
            self.notify_group_changed(group)

    async def evict_idle(self) -> None:
        for peer_id in self.members.expired_peers(self._monotonic_ms()):
            for group in self.members.remove_peer(peer_id):
                self.notify_group_changed(group)
            if self.server is not None:
                self.server.close_peer(peer_id)

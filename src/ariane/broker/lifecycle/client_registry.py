"""Connected clients: eviction of idle ones, and notification of consumer groups about membership changes.

[ClientHousekeepingService]
"""

from __future__ import annotations

import logging

from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.state.filter_servers import FilterServers
from ariane.broker.state.group_members import GroupMembers
from ariane.clock import Clock
from ariane.errors import ConnectionLost
from ariane.net.connection import Peer
from ariane.net.server import RemotingServer
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.clients import GroupRef

log = logging.getLogger("ariane.broker")


class ClientRegistry:
    """The members of all groups, and the filter servers."""

    def __init__(self, *, settings: DynamicConfig, clock: Clock) -> None:
        self.members = GroupMembers()
        self.filter_servers = FilterServers()
        self.server: RemotingServer | None = None  # reaches the clients; set once the port is bound
        self._settings = settings
        self._clock = clock

    def notify_group_changed(self, group: str) -> None:
        """Notify the members of a consumer group that they have to rebalance."""
        if self.server is None or not self._settings.current.notify_consumer_ids_changed_enable:
            return
        header = encode_header(GroupRef(group))
        for peer_id in self.members.consumer_peers(group):
            try:
                self.server.one_way(peer_id, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)
            except ConnectionLost as error:
                log.info("Could not notify client %s of group %s of the change: %s", peer_id, group, error)

    def on_connection_lost(self, peer: Peer) -> None:
        """Remove the client of a closed connection from its groups."""
        self.filter_servers.remove_peer(peer.id)
        for group in self.members.remove_peer(peer.id):
            self.notify_group_changed(group)

    async def evict_idle(self) -> None:
        """Remove clients without recent heartbeats, and close their connections."""
        for peer_id in self.members.expired_peers(self._clock.monotonic() * 1000):
            for group in self.members.remove_peer(peer_id):
                self.notify_group_changed(group)
            if self.server is not None:
                self.server.close_peer(peer_id)

"""Which client has received a delivery, for tools. In memory only."""

from __future__ import annotations

from collections import OrderedDict

from ariane.broker.state.pop_table import QueueKey
from ariane.net.connection import Peer

DELIVERIES_MAX = 20_000  # a delivery has all messages that a request has taken from a queue; one takes about 300 bytes


class DeliveryClients:
    """The clients of the last deliveries, each by its queue and its time."""

    def __init__(self) -> None:
        self._peers: OrderedDict[tuple[QueueKey, int], Peer] = OrderedDict()

    def note(self, key: QueueKey, taken_ms: int, peer: Peer) -> None:
        """Remember the client of a delivery."""
        self._peers[key, taken_ms] = peer
        if len(self._peers) > DELIVERIES_MAX:
            self._peers.popitem(last=False)

    def renew(self, key: QueueKey, taken_ms: int, renewed_ms: int) -> None:
        """Give the delivery that replaces another one its client."""
        if renewed_ms != taken_ms and (peer := self.get(key, taken_ms)) is not None:
            self.note(key, renewed_ms, peer)

    def get(self, key: QueueKey, taken_ms: int) -> Peer | None:
        return self._peers.get((key, taken_ms))

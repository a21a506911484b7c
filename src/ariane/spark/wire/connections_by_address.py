"""Blocking connections to several servers, for requests that wait for their responses.

One connection per address, opened on first use. Servers close connections that were idle for two minutes, so a connection that
turns out to be closed is replaced immediately.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ariane.errors import ArianeError, ConnectionLost
from ariane.protocol.command import Command
from ariane.spark.wire.access import ClusterAccess, credentials, tls_context
from ariane.spark.wire.blocking_connection import BlockingConnection, Request

log = logging.getLogger("ariane.spark")


class BlockingConnectionPool:
    """Connections of a planner or task to servers that are accessed with one set of access options."""

    def __init__(self, access: ClusterAccess) -> None:
        self._timeout_ms = access.timeout_ms
        self._credentials = credentials(access)  # sign requests if the cluster has access control; None otherwise
        self._tls = tls_context(access)  # None: plain connections
        self._connections: dict[str, BlockingConnection] = {}

    def call_all(self, addr: str, requests: Sequence[Request]) -> list[Command]:
        """Send requests to `addr`, pipelined, and return their responses in the same order.

        Raises:
            ConnectionLost, RequestTimeout: a response is missing.
        """
        connection = self._connections.get(addr)
        if connection is not None:
            try:
                return self._call(connection, requests)
            except ConnectionLost:
                log.debug("Connection to %s was closed while idle; reconnecting", addr)
        connection = BlockingConnection(addr, self._timeout_ms, self._credentials, self._tls)
        self._connections[addr] = connection
        return self._call(connection, requests)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _call(self, connection: BlockingConnection, requests: Sequence[Request]) -> list[Command]:
        """Call `connection`; drop it if a response is missing."""
        try:
            return connection.call_all(requests)
        except ArianeError:
            self._connections.pop(connection.addr, None)
            connection.close()
            raise

"""Connections of a client with a namespace: names are wrapped in the headers of its requests, and unwrapped in those of brokers.

    client ─ names of the application ─→ NamespacedPool ─ names on the wire ─→ broker, name server
    client ←─────────────────────────── handlers       ←─ requests of brokers ─┘

Bodies are wrapped and unwrapped where they are encoded and decoded.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import msgspec

from ariane.client.instance.namespace import Namespace
from ariane.net.connection import Handler, HandlerResult, Peer, Sign
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.command import Command

# extFields of requests of brokers that contain the name of a topic or group.
NAME_FIELDS = ("topic", "group", "consumerGroup", "producerGroup")


class NamespacedPool(ConnectionPool):
    """A connection pool for a namespace. A request on a connection of `connect` has to be wrapped by its sender."""

    def __init__(
        self,
        namespace: Namespace,
        handlers: Mapping[int, Handler],
        *,
        sign: Sign | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        unwrapping = {code: _unwrapping(handler, namespace) for code, handler in handlers.items()}
        super().__init__(unwrapping, sign=sign, tls=tls)
        self._namespace = namespace

    def _fields(self, header: msgspec.Struct | None) -> dict[str, str] | None:
        return super()._fields(self._namespace.to_wire(header))


def _unwrapping(handler: Handler, namespace: Namespace) -> Handler:
    """Return the handler of a broker's request that gets the application's names."""

    def handle(command: Command, peer: Peer) -> HandlerResult:
        fields = command.field_map()
        for name in NAME_FIELDS:
            if name in fields:
                fields[name] = namespace.unwrap(fields[name])
        return handler(msgspec.structs.replace(command, fields=fields), peer)

    return handle

"""DELETE_EXPIRED_COMMITLOG (329): remove expired files without waiting for the hour. [AdminBrokerProcessor]"""

from __future__ import annotations

from collections.abc import Callable

from ariane.net.connection import Handler, Peer, Reply
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command


def handlers(clean_soon: Callable[[], None]) -> dict[int, Handler]:
    def delete_expired(command: Command, peer: Peer) -> Reply:
        clean_soon()
        return Reply()

    return {RequestCode.DELETE_EXPIRED_COMMITLOG: delete_expired}

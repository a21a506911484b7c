"""DELETE_EXPIRED_COMMITLOG (329): remove expired files without waiting for the configured hour. [AdminBrokerProcessor]"""

from __future__ import annotations

from ariane.broker.file_cleaner import FileCleaner
from ariane.net.connection import Peer, Reply
from ariane.protocol.command import Command


class FileExpiryHandler:
    """Starts the file cleaner on request."""

    def __init__(self, *, cleaner: FileCleaner) -> None:
        self._cleaner = cleaner

    def delete_expired(self, command: Command, peer: Peer) -> Reply:
        """Handle DELETE_EXPIRED_COMMITLOG. The next runs of the cleaner remove the files; the reply does not wait for them."""
        self._cleaner.request_cleaning()
        return Reply()

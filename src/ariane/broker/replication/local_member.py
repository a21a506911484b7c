"""This broker as a member of its set: epochs and end of its log, and as a slave its identity."""

from __future__ import annotations

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.replication.following import Following
from ariane.broker.replication.member_identity import MemberIdentity, member_name, open_identity, read_boot_id
from ariane.store.disk.files import Disk
from ariane.store.log.epochs import open_epochs
from ariane.store.message_store import MessageStore


class LocalMember:
    """What is stored next to an open log for replication."""

    def __init__(self, config: BrokerConfig, disk: Disk, store: MessageStore) -> None:
        self._store = store
        self.epochs = open_epochs(disk, config.store_path_root_dir, store.commit_log_max)  # of the log
        self._identity: MemberIdentity | None = None
        self.following: Following | None = None  # of a slave
        if config.is_slave:
            root, end = config.store_path_root_dir, store.commit_log_max
            self._identity = open_identity(disk, root, member_name(config), boot_id=read_boot_id(), log_end=end)
            member, source = self._identity.member, store.replication_source
            self.following = Following(store.follow_master(), self.epochs, member, source)

    def close_store(self) -> None:
        """Close the store; the incarnation of its data remains if everything is on the disk."""
        is_intact = self._store.failure is None
        self._store.close()
        if self._identity is not None and is_intact:
            self._identity.mark_stopped()

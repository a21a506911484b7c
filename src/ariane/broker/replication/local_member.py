"""This broker as a member of its set: epochs and end of its log, and as a slave its identity."""

from __future__ import annotations

from collections.abc import Callable

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.lifecycle.flusher import Flusher
from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.lifecycle.topic_deletion import TopicRemover
from ariane.broker.replication.change_follower import ChangeFollower
from ariane.broker.replication.following import Following
from ariane.broker.replication.member_identity import MemberIdentity, member_name, open_identity, read_boot_id
from ariane.broker.replication.membership import Membership
from ariane.broker.replication.replication import ReplicationFeed
from ariane.store.disk.files import Disk
from ariane.store.log.checkpoint import read_checkpoint
from ariane.store.log.epochs import Epoch, open_epochs
from ariane.store.message_store import MessageStore
from ariane.store.recovery.store_directory import is_running_or_crashed


def prepare_epochs(disk: Disk, root: str, membership: Membership | None) -> None:
    """Let the epochs of a closed log say which records they do not prove. A start can write a checkpoint that covers those.

    Raises:
        StoreError, OSError: the epochs cannot be used or stored.
    """
    checkpoint = read_checkpoint(disk, f"{root}/checkpoint")
    epochs = open_epochs(disk, root, written_by_java=checkpoint.is_of_java)
    if membership is not None and (identity := membership.identity).is_unproven:
        if is_running_or_crashed(disk, root):
            epochs.distrust(checkpoint.safe_offset or 0, identity.member.incarnation)
        identity.mark_distrusted()


class LocalMember:
    """What is stored next to an open log for replication."""

    def __init__(
        self, config: BrokerConfig, disk: Disk, store: MessageStore, membership: Membership | None = None
    ) -> None:
        self._store, self._disk, self._root = store, disk, config.store_path_root_dir
        root, end = config.store_path_root_dir, store.commit_log_max
        self.epochs = open_epochs(disk, root, end)  # of the log
        # Of a slave without failover. With failover, the supervisor has the identity: it stays in all roles.
        self._identity: MemberIdentity | None = None
        self.following: Following | None = None  # of a slave
        if membership is not None:
            membership.attach(self.epochs, store)
            if membership.epoch:
                self.epochs.begin(Epoch(membership.epoch, end, membership.me.name))  # before its first record
        elif config.is_slave:
            self._identity = open_identity(disk, root, member_name(config), boot_id=read_boot_id(), log_end=end)
        if config.is_slave:
            identity = membership.identity if membership else self._identity
            assert identity is not None
            replica, source = store.follow_master(), store.replication_source
            self.following = Following(replica, self.epochs, identity.member, source, membership)

    def connect_state(
        self, state: PersistentState, remover: TopicRemover, feed: ReplicationFeed, now_ms: Callable[[], float]
    ) -> None:
        """Let the state of a slave follow that of its master, and send the state of a master."""
        if not self._store.recovery_report.clean:
            state.limit_offsets(self._store.max_offset)
        if self.following is None:
            feed.send_changes(state)
        else:
            self.following.changes = ChangeFollower(state, remover, now_ms)

    def follows_changes(self) -> bool:
        """Return whether this is a slave whose master sends the changes of its state."""
        return self.following is not None and self.following.follows_changes

    def flush_before_acknowledging(self, flusher: Flusher) -> None:
        """Acknowledge to the master what is on the disk (SYNC_FLUSH)."""
        if self.following is not None:
            self.following.flusher = flusher

    def close_store(self) -> None:
        """Close the store; the incarnation of its data remains if everything is on the disk."""
        self._store.close()
        if self._identity is not None and not is_running_or_crashed(self._disk, self._root):
            self._identity.mark_stopped(self._store.commit_log_max)

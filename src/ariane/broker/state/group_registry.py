"""Consumer groups of this broker, with their settings. [SubscriptionGroupManager]"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from ariane.broker.state.creation_limits import CreationLimits
from ariane.broker.state.saved.change_records import GroupDeleted, GroupPut
from ariane.errors import StoreError
from ariane.model.topic import SYSTEM_GROUP_PREFIX, DataVersion, SubscriptionGroupConfig
from ariane.protocol.requests import rules
from ariane.protocol.requests.admin import SubscriptionGroupTable

log = logging.getLogger("ariane.broker.state")

# Groups that exist from the start, as in 4.9.4.
DEFAULT_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)


class GroupRegistry:
    """The table of consumer groups.

    `record` stores each change before it is made; if it raises, the table does not change. `on_table_change` is called after
    each change.
    """

    def __init__(
        self,
        table: SubscriptionGroupTable,
        *,
        auto_create: bool,
        now_ms: Callable[[], int],
        record: Callable[[GroupPut | GroupDeleted], object] = lambda change: None,
        limits: CreationLimits | None = None,
    ) -> None:
        self._record = record
        self._limits = limits  # None: as many as are created
        # Stored settings of a default group replace the built-in ones.
        self._groups = {name: SubscriptionGroupConfig(group_name=name) for name in DEFAULT_GROUPS}
        self._groups.update(table.subscription_group_table)
        self._version = table.data_version  # slaves and tools notice changes by it
        self.auto_create = auto_create  # create groups on first use
        self._now_ms = now_ms  # time in the version
        self.on_table_change: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group, None if it does not exist."""
        return self._groups.get(name)

    def get_or_create(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group, None if it does not exist and must not be created automatically."""
        config = self._groups.get(name)
        if config is None and (self.auto_create or name.startswith(SYSTEM_GROUP_PREFIX)):
            rules.GROUP.check("consumerGroup", name)
            config = SubscriptionGroupConfig(group_name=name)
            try:
                self.put(config)
            except StoreError as error:  # consumers can go on while the disk is full; the next use stores the group
                log.warning("Using consumer group %s without storing it: %s", name, error)
                self._apply(config, self._version)
        return config

    def replace(self, table: SubscriptionGroupTable, *, is_forced: bool = False) -> None:
        """Replace the table by the master's if the versions differ, or in any case (on a slave)."""
        if is_forced or table.data_version != self._version:
            self._groups = dict(table.subscription_group_table)
            self._version = table.data_version
            self.on_table_change()

    def apply(self, change: GroupPut | GroupDeleted) -> None:
        """Make a change of the master (on a slave), which is stored already."""
        if isinstance(change, GroupPut):
            self._apply(change.config, change.version)
        elif change.version is not None:
            self._groups.pop(change.name, None)
            self._version = change.version
            self.on_table_change()

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or change a group.

        Raises:
            ReplyError: there are too many groups, or the client has created too many.
            StoreError: the change cannot be stored.
        """
        if self._limits is not None and config.group_name not in self._groups:
            if len(self._groups) >= self._limits.groups_max:
                remark = (
                    f"cannot create the consumer group: this broker has {len(self._groups)}; delete unused groups first"
                )
                raise self._limits.refuse("groups", remark)
            self._limits.charge_client({"groups": 1})
        version = self._version.next(self._now_ms())
        self._record(GroupPut(config, version))
        self._apply(config, version)

    def disable_consuming(self, name: str) -> None:
        """Set consumeEnable of a group to false, in memory only: as in 4.9.4, a restart sets it back."""
        config = self._groups.get(name)
        if config is not None and config.consume_enable:
            self._groups[name] = msgspec.structs.replace(config, consume_enable=False)
            self._version = self._version.next(self._now_ms())

    def delete(self, name: str, *, offsets: bool = False) -> None:
        """Delete a group.

        Args:
            offsets: Whether the caller also deletes its offsets, which is recorded in the same change.
        """
        version = self._version.next(self._now_ms()) if name in self._groups else None
        if version is None and not offsets:
            return
        self._record(GroupDeleted(name, version, offsets))
        if version is not None:
            del self._groups[name]
            self._version = version
            self.on_table_change()

    def table(self) -> SubscriptionGroupTable:
        """Return the document for subscriptionGroup.json."""
        return SubscriptionGroupTable(self._version, dict(self._groups))

    def _apply(self, config: SubscriptionGroupConfig, version: DataVersion) -> None:
        self._groups[config.group_name] = config
        self._version = version
        self.on_table_change()

"""Consumer groups of this broker and their settings. [SubscriptionGroupManager]"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from ariane.broker.state.change_records import GroupDeleted, GroupPut
from ariane.errors import ReplyError, StoreError
from ariane.model.topic import SYSTEM_GROUP_PREFIX, DataVersion, SubscriptionGroupConfig
from ariane.protocol.codes import ResponseCode
from ariane.protocol.requests import rules
from ariane.protocol.requests.admin import SubscriptionGroupTable

log = logging.getLogger("ariane.broker.state")

# There from the start, as in 4.9.4.
DEFAULT_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)

GROUPS_MAX = 100_000


class GroupRegistry:
    """The table of consumer groups.

    A group is put or deleted after `record` has stored the change, and not if it raises. `changed` is called after each change.
    """

    def __init__(
        self,
        table: SubscriptionGroupTable,
        *,
        auto_create: bool,
        now_ms: Callable[[], int],
        record: Callable[[GroupPut | GroupDeleted], object] = lambda change: None,
    ) -> None:
        self._record = record
        self._groups = {name: SubscriptionGroupConfig(group_name=name) for name in DEFAULT_GROUPS}
        self._groups.update(table.subscription_group_table)
        self._version = table.data_version
        self.auto_create = auto_create
        self._now_ms = now_ms
        self.on_table_change: Callable[[], None] = lambda: None

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        return self._groups.get(name)

    def get_or_create(self, name: str) -> SubscriptionGroupConfig | None:
        """The group, created when groups may be created by use."""
        config = self._groups.get(name)
        if config is None and (self.auto_create or name.startswith(SYSTEM_GROUP_PREFIX)):
            rules.GROUP.check("consumerGroup", name)
            config = SubscriptionGroupConfig(group_name=name)
            try:
                self.put(config)
            except StoreError as error:  # a full disk keeps nobody from reading, and the next use creates it again
                log.warning("consumer group %s is used without being stored: %s", name, error)
                self._apply(config, self._version)
        return config

    def replace(self, table: SubscriptionGroupTable) -> None:
        """Take over a master's table, when it is another one (a slave)."""
        if table.data_version != self._version:
            self._groups = dict(table.subscription_group_table)
            self._version = table.data_version
            self.on_table_change()

    def put(self, config: SubscriptionGroupConfig) -> None:
        if config.group_name not in self._groups and len(self._groups) >= GROUPS_MAX:
            remark = f"this broker has {GROUPS_MAX} consumer groups already; delete some first"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        version = self._version.next(self._now_ms())
        self._record(GroupPut(config, version))
        self._apply(config, version)

    def disable_consuming(self, name: str) -> None:
        """Let a group consume no more until somebody allows it again. In memory only, as in 4.9.4: a restart forgets it."""
        config = self._groups.get(name)
        if config is not None and config.consume_enable:
            self._groups[name] = msgspec.structs.replace(config, consume_enable=False)
            self._version = self._version.next(self._now_ms())

    def delete(self, name: str, *, offsets: bool = False) -> None:
        """Delete a group; `offsets`: the caller deletes its offsets, which is recorded with it."""
        version = self._version.next(self._now_ms()) if name in self._groups else None
        if version is None and not offsets:
            return
        self._record(GroupDeleted(name, version, offsets))
        if version is not None:
            del self._groups[name]
            self._version = version
            self.on_table_change()

    def table(self) -> SubscriptionGroupTable:
        return SubscriptionGroupTable(self._version, dict(self._groups))

    def _apply(self, config: SubscriptionGroupConfig, version: DataVersion) -> None:
        self._groups[config.group_name] = config
        self._version = version
        self.on_table_change()

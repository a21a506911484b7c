"""The configuration of a running broker: one value at a time, replaced as a whole by changes of tools. [Configuration]

    UPDATE_BROKER_CONFIG (25) → BROKER_SETTINGS.change → broker.conf and its .bak → DynamicConfig.current → its next reader

Components that have to see changes hold the `DynamicConfig` and read `config.current.<field>` at each use, without
subscribing. A component that copies a value at its start makes the setting unchangeable: its field has no `Changeable` marker,
and a change is refused with the reason, because a change without effect is worse than an error. Paths, names and ports never
change by a request (CVE-2023-33246: the sender of a request could have files of his choice written).
"""

from __future__ import annotations

from collections.abc import Mapping

from ariane.broker.config.broker_config import BrokerConfig
from ariane.model.topic import DataVersion
from ariane.protocol import java_properties
from ariane.store.disk.files import Disk, read_whole, write_atomic


class DynamicConfig:
    """The configuration in force, and the version that counts its changes."""

    def __init__(self, config: BrokerConfig, now_ms: int) -> None:
        self.current = config
        self.version = DataVersion(0, now_ms)

    def apply(self, config: BrokerConfig, now_ms: int) -> None:
        """Put a configuration in force."""
        self.current = config
        self.version = self.version.next(now_ms)


def update_file(disk: Disk, path: str, changes: Mapping[str, str]) -> None:
    """Write changed values to a broker.conf. Comments and the order of lines stay; the former file becomes the `.bak`.

    Raises:
        FileNotFoundError: the file that the broker was started with was removed.
    """
    former = read_whole(disk, path)
    if former is None:
        raise FileNotFoundError(2, "the file that the broker was started with was removed", path)
    text = java_properties.edit(former.decode(), changes)
    write_atomic(disk, f"{path}.bak", former)
    write_atomic(disk, path, text.encode())

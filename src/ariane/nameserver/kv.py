"""The KV table: namespace → key → value, kept in kvConfig.json. [KVConfigManager]

The file is replaced whole at each change, the former one stays as `.bak`; one that cannot be read falls back to its `.bak`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from ariane.errors import ConfigError, ProtocolError
from ariane.protocol import fastjson

log = logging.getLogger("ariane.nameserver")

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
VALUES_MAX = 100_000
VALUE_SIZE_MAX = 1024 * 1024


class KvDocument(msgspec.Struct, frozen=True, rename="camel"):
    """kvConfig.json."""

    config_table: dict[str, dict[str, str]] = {}


class KvTable:
    """The table and its file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table = {name: dict(values) for name, values in _load(path).config_table.items()}

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, name: str) -> dict[str, str] | None:
        values = self._table.get(name)
        return None if values is None else dict(values)

    def put(self, namespace: str, key: str, value: str) -> None:
        if len(value) > VALUE_SIZE_MAX:
            raise ProtocolError(f"a value of {len(value)} characters, at most {VALUE_SIZE_MAX} are kept")
        if sum(map(len, self._table.values())) >= VALUES_MAX and self.get(namespace, key) is None:
            raise ProtocolError(f"the name server keeps {VALUES_MAX} values already; delete some first")
        self._table.setdefault(namespace, {})[key] = value
        self._save()

    def delete(self, namespace: str, key: str) -> None:
        if self._table.get(namespace, {}).pop(key, None) is not None:
            self._save()

    def _save(self) -> None:
        """Blocks for one fsync: the table changes when an operator changes it."""
        data = fastjson.write(KvDocument(self._table), pretty=True)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_name(self._path.name + ".tmp")
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if self._path.exists():
            self._path.replace(_backup(self._path))
        beside.replace(self._path)


def _backup(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def _load(path: Path) -> KvDocument:
    faults = []
    for candidate in (path, _backup(path)):
        if not candidate.exists() or not (data := candidate.read_bytes()):
            continue
        try:
            document = fastjson.decode(data, KvDocument)
        except ProtocolError as error:
            faults.append(f"{candidate}: {error}")
            continue
        for fault in faults:
            log.error("%s; went on with %s", fault, candidate)
        return document
    if faults:
        raise ConfigError("kvConfigPath", str(path), f"{'; '.join(faults)}; mend or remove the file")
    return KvDocument()

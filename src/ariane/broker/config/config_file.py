"""The configuration file of a running broker: UPDATE_BROKER_CONFIG stores changed settings in it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor

from ariane.broker.config.dynamic_config import update_file
from ariane.store.disk.files import Disk


class BrokerConfigFile:
    """One broker.conf, written by `executor`."""

    def __init__(self, *, disk: Disk, path: str, executor: Executor) -> None:
        self._disk = disk
        self._path = path
        self._executor = executor

    async def write(self, changes: Mapping[str, str]) -> None:
        """Replace the values of the changed keys.

        Raises:
            OSError: the file cannot be read or written.
            UnicodeDecodeError: the file is not UTF-8.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, update_file, self._disk, self._path, changes)

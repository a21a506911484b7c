"""Native core of Ariane. `ariane.kernels.implementation` decides whether it is used."""

from collections.abc import Callable, Sequence, Set
from typing import Any

INTERFACE_VERSION: int
"""Of the classes below; `ariane.kernels.implementation` expects one."""

VERSION: str
"""Of the distribution."""

_QueueEntries = tuple[str, int, bytes, int, int]  # topic, queue id, entries, sends, bytes of the records
# position, sends, records, queues, keys, responses
_SendRun = tuple[int, int, bytes, list[_QueueEntries], bytes, bytes]

class SendEncoder:
    """`ariane.kernels.send_turn.SendEncoder`. Raises ValueError or TypeError for invalid arguments, whatever `data` contains."""

    frames_max: int

    def __init__(
        self,
        *,
        store_host: bytes,
        cluster: str,
        region: str,
        trace_on: bool,
        header_max: int,
        body_max: int,
        is_indexed: bool,
        exceptional: Set[str],
    ) -> None: ...
    def encode(
        self,
        data: bytes,
        position: int,
        born_host: bytes,
        log_end: tuple[int, int, int],
        next_offset: Callable[[str, int], int],
    ) -> _SendRun: ...

class FileMap:
    """`ariane.kernels.pull_selection.FileMap`: a file of the machine's disk. Linux only.

    Raises OSError if the file cannot be mapped, ValueError for bytes that are not loaded and for a closed map.
    """

    def __init__(self, handle: int, size: int, resident_max: int) -> None: ...
    def load(self, start: int, stop: int) -> bool: ...
    def __getitem__(self, part: slice, /) -> bytes: ...
    def close(self) -> None: ...

_Limits = tuple[int, int, int, int, int, int]  # `ariane.kernels.pull_selection.PullLimits`
_SelectedMessages = tuple[bytes, tuple[int, ...], int, int, bool]  # body, sizes, scanned, last, is_removed

def select_messages(
    entries: bytes, log_map: Any, base: int, size: int, codes: Set[int] | None, limits: _Limits
) -> _SelectedMessages | None:
    """`ariane.kernels.pull_selection.select_messages`. Reads a `FileMap` of this module without Python."""

class IndexSlots:
    """`ariane.kernels.index_slots.IndexSlots`. Raises ValueError, TypeError, or MemoryError for too many slots."""

    def __init__(self, count: int) -> None: ...
    def newest(self, slot: int) -> int: ...
    # entries, slots used
    def link(self, keys: bytes, seconds: Sequence[tuple[int, int]], number: int) -> tuple[bytes, int]: ...
    # length, slots used, last offset
    def continue_chains(self, entries: bytes, number: int, bounds: tuple[int, int, bool]) -> tuple[int, int, int]: ...
    def load(self, position: int, data: bytes) -> None: ...
    def dump(self, position: int, size: int) -> bytes: ...

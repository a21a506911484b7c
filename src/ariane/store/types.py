"""What goes into the store and what comes out of it; frozen values, no behaviour. Re-exported by `message_store`."""

from __future__ import annotations

import enum
import os
from typing import Literal, NamedTuple

import msgspec

from ariane.errors import ConfigError
from ariane.protocol.record import FILLER_SIZE, FIXED_SIZE
from ariane.store.files import OPEN_FILES_MAX

_MINUTE = 60_000
# messageDelayLevel of 4.9.4: 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h
DELAYS_MS = (
    1_000,
    5_000,
    10_000,
    30_000,
    *(n * _MINUTE for n in range(1, 11)),
    20 * _MINUTE,
    30 * _MINUTE,
    60 * _MINUTE,
    120 * _MINUTE,
)


def _cached_share() -> int:
    """40 % of the machine's memory, accessMessageInMemoryMaxRatio: that much of the log's end is taken as cached."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 40 // 100


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a store."""

    root: str
    """Directory of all store files (storePathRootDir)."""
    commit_log: str = ""
    """Directory of the commit log (storePathCommitLog); empty: `commitlog` in `root`."""
    accept_empty_log: bool = False
    """Start although the commit log, or its end, is missing; messages that only it held are lost."""
    commit_log_size: int = 1 << 30
    """Bytes of a commit log file (mappedFileSizeCommitLog). Cannot be changed once there are files."""
    consume_queue_size: int = 6_000_000
    """Bytes of a consume queue file, rounded up to a multiple of 20 (mappedFileSizeConsumeQueue)."""
    flush: Literal["async", "sync"] = "async"
    """sync: consumers see only what is flushed (flushDiskType)."""
    follower: bool = False
    """The store of a slave: what a start finds broken is cut with all behind it, since the master has it."""
    check_crc_on_recover: bool = True
    """Verify bodies while the log is read at start (checkCRCOnRecover)."""
    max_message_size: int = 4 << 20
    """Longest body (maxMessageSize)."""
    index: bool = False
    """Keep an index of keys, for `query` (messageIndexEnable; a broker's default is true)."""
    index_slots: int = 5_000_000
    """Slots of an index file (maxHashSlotNum): the larger, the fewer keys share one; 4 bytes of memory each."""
    index_entries: int = 20_000_000
    """Keys of an index file, plus one (maxIndexNum)."""
    delays_ms: tuple[int, ...] = DELAYS_MS
    """Delay of each level (messageDelayLevel)."""
    transfer_bytes_in_memory: int = 262_144
    """Most bytes of one answer with recent records (maxTransferBytesOnMessageInMemory)."""
    transfer_count_in_memory: int = 32
    """Most records of such an answer (maxTransferCountOnMessageInMemory)."""
    transfer_bytes_on_disk: int = 65_536
    """Most bytes of one answer with old records (maxTransferBytesOnMessageInDisk)."""
    transfer_count_on_disk: int = 8
    """Most records of such an answer (maxTransferCountOnMessageInDisk)."""
    memory_bytes: int = msgspec.field(default_factory=_cached_share)
    """Records nearer than this to the end of the log are recent."""
    open_files_max: int = OPEN_FILES_MAX
    """Files kept open. With more queues written to in turn than this, each entry opens and closes a file."""

    @property
    def log_directory(self) -> str:
        """Directory of the commit log files."""
        return self.commit_log.rstrip("/") or f"{self.root}/commitlog"

    def check(self) -> None:
        """ConfigError for the first setting that cannot work."""
        if not self.root:
            raise ConfigError("storePathRootDir", self.root, "name the directory of the store")
        if not FIXED_SIZE + FILLER_SIZE < self.commit_log_size < 1 << 31:
            raise ConfigError("mappedFileSizeCommitLog", self.commit_log_size, "set it to at least 100 and below 2 GiB")
        if not 0 < self.consume_queue_size < (1 << 31) - 20:
            raise ConfigError(
                "mappedFileSizeConsumeQueue", self.consume_queue_size, "set it to a multiple of 20 below 2 GiB"
            )
        if not 0 < self.index_slots <= 1 << 28:
            raise ConfigError("maxHashSlotNum", self.index_slots, "set it to 1 to 268435456")
        if not 1 < self.index_entries < 1 << 31:
            raise ConfigError("maxIndexNum", self.index_entries, "set it to 2 to 2147483647")
        if self.open_files_max < 1:
            raise ConfigError("open files", self.open_files_max, "let the process open at least 2 (ulimit -n)")
        if self.max_message_size < 1:
            raise ConfigError("maxMessageSize", self.max_message_size, "set it to at least 1")


class RecordDraft(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message to be stored. Its sizes and its right to be stored were checked by who made it, save for what would break the
    format. `properties` is the stored text and must hold `tags` as its TAGS; `tags_code` overrides what is derived from them."""

    topic: str
    queue_id: int
    body: bytes
    born_ms: int
    born_host: bytes
    properties: str = ""
    tags: str = ""
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0
    tags_code: int | None = None


class AppendResult(NamedTuple):
    """Where a draft came to lie."""

    offset: int
    size: int
    queue_offset: int
    store_ms: int


class GetStatus(enum.Enum):
    """Outcome of a read, named as in Java: the name is the remark of a pull answer."""

    FOUND = enum.auto()
    NO_MATCHED_MESSAGE = enum.auto()
    MESSAGE_WAS_REMOVING = enum.auto()
    OFFSET_FOUND_NULL = enum.auto()
    OFFSET_OVERFLOW_BADLY = enum.auto()
    OFFSET_OVERFLOW_ONE = enum.auto()
    OFFSET_TOO_SMALL = enum.auto()
    NO_MATCHED_LOGIC_QUEUE = enum.auto()  # never given: as in Java, an unknown queue has NO_MESSAGE_IN_QUEUE
    NO_MESSAGE_IN_QUEUE = enum.auto()


class GetResult(NamedTuple):
    """What a read found: `records` as they lie on the disk, and where to read on."""

    status: GetStatus
    records: list[bytes]
    next_offset: int
    min_offset: int
    max_offset: int
    suggest_slave: bool
    bytes_behind: int | None = None  # bytes of log from the last record looked at to the end; None: none was looked at

"""Input and output values of the store: settings, drafts, results. Re-exported by `message_store`."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from itertools import accumulate
from typing import Literal, NamedTuple

import msgspec

from ariane.errors import ConfigError
from ariane.protocol.records.record import FILLER_SIZE, FIXED_SIZE
from ariane.store.disk.files import OPEN_FILES_MAX

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
    """Return 40 % of the machine's memory (accessMessageInMemoryMaxRatio): so much of the log's end is assumed to be cached."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 40 // 100


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a store."""

    root: str
    """Directory of all store files (storePathRootDir)."""
    commit_log: str = ""
    """Directory of the commit log (storePathCommitLog); empty: `commitlog` in `root`."""
    accept_empty_log: bool = False
    """Start although the commit log, or its end, is missing. Its messages are lost."""
    repairs_loss: bool = True
    """Repair a store from which complete records or their entries are missing. False: raise `RecordsLost`."""
    commit_log_size: int = 1 << 30
    """Bytes of a commit log file (mappedFileSizeCommitLog). Cannot be changed once files exist."""
    consume_queue_size: int = 6_000_000
    """Bytes of a consume queue file, rounded up to a multiple of 20 (mappedFileSizeConsumeQueue)."""
    flush: Literal["async", "sync"] = "async"
    """sync: consumers see only flushed messages (flushDiskType)."""
    confirmed_reads: bool = False
    """Consumers see only messages below the confirmed end, which the broker sets (confirmedReads)."""
    follower: bool = False
    """Store of a slave: a start cuts the log at the first corrupt range, because the master has the records."""
    check_crc_on_recover: bool = True
    """Verify bodies while the log is read at start (checkCRCOnRecover)."""
    max_message_size: int = 4 << 20
    """Longest body (maxMessageSize)."""
    index: bool = False
    """Maintain an index of keys for `query` (messageIndexEnable; a broker's default is true)."""
    index_slots: int = 5_000_000
    """Slots of an index file (maxHashSlotNum). More slots mean fewer keys per slot; each takes 4 bytes of memory."""
    index_entries: int = 20_000_000
    """Entries of an index file, including the unused entry 0 (maxIndexNum)."""
    delays_ms: tuple[int, ...] = DELAYS_MS
    """Delay of each level in ms (messageDelayLevel)."""
    transfer_bytes_in_memory: int = 262_144
    """Most bytes of one response with recent records (maxTransferBytesOnMessageInMemory)."""
    transfer_count_in_memory: int = 32
    """Most records of one response with recent records (maxTransferCountOnMessageInMemory)."""
    transfer_bytes_on_disk: int = 65_536
    """Most bytes of one response with old records (maxTransferBytesOnMessageInDisk)."""
    transfer_count_on_disk: int = 8
    """Most records of one response with old records (maxTransferCountOnMessageInDisk)."""
    memory_bytes: int = msgspec.field(default_factory=_cached_share)
    """Records less than this many bytes before the end of the log are recent."""
    open_files_max: int = OPEN_FILES_MAX
    """Most open files. If more queues than this are written in turn, each entry opens and closes a file."""

    @property
    def shows_stored_records(self) -> bool:
        """Whether consumers see a record once it is stored, before it is flushed or confirmed."""
        return self.flush != "sync" and not self.confirmed_reads

    @property
    def log_directory(self) -> str:
        """Directory of the commit log files."""
        return self.commit_log.rstrip("/") or f"{self.root}/commitlog"

    def check(self) -> None:
        """Check that the settings can work together.

        Raises:
            ConfigError: the first setting that cannot work, with the allowed values.
        """
        if not self.root:
            raise ConfigError("storePathRootDir", self.root, "set it to the directory of the store")
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
    """A message to store. The caller has validated it; the store checks only what the record format cannot hold.

    `properties` is the stored text and must contain `tags` as its TAGS; `tags_code` overrides the code computed from them.
    """

    topic: str  # where it is stored: for delayed and half messages an internal topic
    queue_id: int
    body: bytes  # as stored, possibly compressed
    born_ms: int  # by the client's clock
    born_host: bytes  # packed address of the client
    properties: str = ""
    tags: str = ""
    flag: int = 0  # the application's, uninterpreted
    sys_flag: int = 0  # compression, transaction state, host sizes (`model.message`)
    reconsume_times: int = 0  # redeliveries so far
    prepared_offset: int = 0  # log offset of the half message that this record commits
    tags_code: int | None = None


class AppendResult(NamedTuple):
    """Position of an appended record: log offset, size in bytes, number in its queue, store time."""

    offset: int
    size: int
    queue_offset: int
    store_ms: int


class RecordFilter(NamedTuple):
    """The records that a read returns."""

    codes: frozenset[int] | None = None
    """Tags codes of consume-queue entries; None: all."""
    accept: Callable[[bytes], bool] | None = None
    """Predicate of records whose tags code matches (SQL92); None: all."""


ALL_RECORDS = RecordFilter()


class GetStatus(enum.Enum):
    """Outcome of a read. The names are Java's, because a pull response carries the name as its remark."""

    FOUND = enum.auto()
    NO_MATCHED_MESSAGE = enum.auto()
    MESSAGE_WAS_REMOVING = enum.auto()
    OFFSET_FOUND_NULL = enum.auto()
    OFFSET_OVERFLOW_BADLY = enum.auto()
    OFFSET_OVERFLOW_ONE = enum.auto()
    OFFSET_TOO_SMALL = enum.auto()
    NO_MATCHED_LOGIC_QUEUE = enum.auto()  # unused: as in Java, an unknown queue has NO_MESSAGE_IN_QUEUE
    NO_MESSAGE_IN_QUEUE = enum.auto()


class GetResult(msgspec.Struct, frozen=True):
    """Result of a read: records as stored, one after another, and the offset to continue at."""

    status: GetStatus  # found, or the reason why not
    body: bytes
    sizes: tuple[int, ...]  # bytes of each record
    next_offset: int  # where to continue; may skip filtered or removed entries
    min_offset: int  # first offset of the queue
    max_offset: int  # end of the queue
    suggest_slave: bool  # the reader is so far behind that its messages are probably on the disk only
    bytes_behind: int | None = None  # bytes of log after the last record examined; None: no record was examined

    @property
    def records(self) -> list[bytes]:
        """The records, apart."""
        body = self.body
        return [body[stop - size : stop] for stop, size in zip(accumulate(self.sizes), self.sizes, strict=True)]

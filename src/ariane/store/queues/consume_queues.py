"""All consume queues of a store: the table is read at start, each queue is opened when it is first used.

    consumequeue/<topic>/<queue id>/<20 digits>

[DefaultMessageStore.consumeQueueTable]
"""

from __future__ import annotations

from collections.abc import Mapping

from ariane.errors import ConfigError, MessageRefused, StoreCorrupt
from ariane.kernels.scanned_record import NotARecord, parse_record
from ariane.model.topic import topic_name_fault
from ariane.protocol.records.queue_entry import ENTRY, ENTRY_SIZE
from ariane.protocol.records.record import FILLER_SIZE
from ariane.store.disk.file_loading import LoadedFiles, find_common_length, load
from ariane.store.disk.files import OpenFiles
from ariane.store.disk.segments import FileCount, Segments
from ariane.store.queues.collected_entries import CollectedEntries
from ariane.store.queues.consume_queue import LMQ_PREFIX, ConsumeQueue, QueueFilesChanged, Read

SETTING = "mappedFileSizeConsumeQueue"
_NO_QUEUES: dict[int, ConsumeQueue] = {}
TAILS_MAX = 2048  # queues with entries in memory: 2048 × 10 KB = 20 MB at most


class ConsumeQueues:
    """The table of queues. Call `allow_opening` before a queue is opened."""

    def __init__(self, files: OpenFiles, root: str, size: int, *, counted: bool) -> None:
        """List the queues below `root`.

        Args:
            counted: the checkpoint has the number of files, so `recovery` notices a missing one.
        """
        self._files = files  # bounds the number of open files: a store may have a million queues
        self._disk = files.disk  # lists and removes directories of queues
        self._root = root
        self._size = (size + ENTRY_SIZE - 1) // ENTRY_SIZE * ENTRY_SIZE  # bytes of a file, a multiple of the entry size
        # All queues; the same by topic, because a deletion must not search a million queues.
        self._table: dict[tuple[str, int], ConsumeQueue] = {}
        self._of_topic: dict[str, dict[int, ConsumeQueue]] = {}  # by topic and queue id
        # Number of all files, for the checkpoint.
        self._count = FileCount()
        # Queues with entries in memory, in the order in which they got them.
        self._tails: dict[ConsumeQueue, None] = {}
        self.collected = CollectedEntries()  # of plain sends, not written yet
        # Set by `allow_opening` once the log is recovered.
        self._limit = 0
        # No entry below `_limit` is stale, so that opening a queue need not compare it with the log.
        self._trusted = False
        self._read: Read = _not_yet  # reads records of the log to find the end of a queue
        # Files and directories to fsync, of all queues together.
        self.changed = QueueFilesChanged(set(), set())
        # A line for each queue whose files are unusable: one is missing or has a wrong length.
        self.rebuild_reasons: list[str] = []
        self._unusable_files: list[Segments] = []  # files of these queues, until `drop_unusable`
        # Bound method of the table: the lookup of every put.
        self.get = self._table.get
        self._load(counted=counted)

    def _load(self, *, counted: bool) -> None:
        loaded: list[tuple[str, int, LoadedFiles]] = []
        for topic in self._disk.listdir(self._root):
            path = f"{self._root}/{topic}"
            for name in self._names(path):
                if not name.isdecimal() or not name.isascii() or (len(name) > 1 and name[0] == "0"):
                    raise StoreCorrupt(f"{path}/{name}", 0, "not a queue id: move it out of the store directory")
                self._names(f"{path}/{name}")
                loaded.append((topic, int(name), load(self._files, f"{path}/{name}", self._size)))
        other = find_common_length([length for _, _, queue in loaded for length in queue.lengths.values()])
        if other not in (None, self._size) and other % ENTRY_SIZE == 0:
            fix = f"all consume queue files of {self._root} have {other} bytes: set {SETTING} = {other}"
            raise ConfigError(SETTING, self._size, fix)
        for topic, queue_id, queue in loaded:
            self._take(topic, queue_id, queue, counted=counted)

    def _take(self, topic: str, queue_id: int, loaded: LoadedFiles, *, counted: bool) -> None:
        """Add a queue to the table; without files if one of them is unusable, so that it is rebuilt from the log."""
        segments, wrong = loaded.segments, loaded.wrong_lengths()
        if counted and wrong and wrong == {segments.bases[-1]: 0}:
            # A crash came between the creation of the file and its first entry: it was not counted yet.
            segments.remove_file(segments.bases[-1])
            self.changed.directories.add(segments.directory)
            wrong = {}
        elif fault := self._fault(loaded, wrong):
            if topic.startswith(LMQ_PREFIX):
                raise StoreCorrupt(
                    segments.directory, 0, f"{fault}: restore this light queue from a copy, or let Java rebuild it"
                )
            self.rebuild_reasons.append(fault)
            self._unusable_files.append(segments)
            segments = Segments(self._files, segments.directory, self._size, [])
        self._register(ConsumeQueue(self._files, topic, queue_id, segments, self.changed))

    def drop_unusable(self) -> None:
        """Remove the files of unusable queues, once the checkpoint says that the queues must be rebuilt."""
        for segments in self._unusable_files:
            for base in list(segments.bases):
                segments.remove_file(base)
            self.changed.directories.add(segments.directory)
        self._unusable_files.clear()

    def _fault(self, loaded: LoadedFiles, wrong: dict[int, int]) -> str:
        segments, gap = loaded.segments, loaded.find_gap()
        if wrong:
            base, length = next(iter(wrong.items()))
            return f"{segments.path(base)} has {length} bytes instead of {segments.size}"
        if loaded.find_misplaced() is not None:
            return f"{segments.path(loaded.find_misplaced() or 0)} does not begin at a multiple of {segments.size}"
        return "" if gap is None else f"{segments.directory} lacks its file at {gap}"

    def _names(self, path: str) -> list[str]:
        try:
            return self._disk.listdir(path)
        except NotADirectoryError:
            raise StoreCorrupt(
                path, 0, "a file where a directory should be: move it out of the store directory"
            ) from None

    def allow_opening(self, limit: int, read: Read, *, trusted: bool = False) -> None:
        """Let queues be opened from now on.

        Args:
            limit: entries of records after this log offset are cut.
            read: reads the log.
            trusted: no entry below `limit` is stale, because this store wrote them and cleared all that it cut.
        """
        self._limit = limit
        self._trusted = trusted
        self._read = read

    def get_opened(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, opened; None if it does not exist."""
        queue = self._table.get((topic, queue_id))
        if queue is not None and not queue.opened:
            queue.open(self._limit, self._read, trusted=self._trusted)
        return queue

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, opened; create it if needed (its files are created with its first entry).

        Raises:
            MessageRefused: the topic or the queue id is invalid.
        """
        queue = self.get_opened(topic, queue_id)
        if queue is None:
            fault = topic_name_fault(topic)
            if fault or not 0 <= queue_id < 1 << 31:
                raise MessageRefused(fault or f"queue id {queue_id} is out of range")
            segments = Segments(self._files, f"{self._root}/{topic}/{queue_id}", self._size, [])
            queue = ConsumeQueue(self._files, topic, queue_id, segments, self.changed)
            queue.opened = True
            self._register(queue)
        return queue

    def _register(self, queue: ConsumeQueue) -> None:
        self._table[queue.topic, queue.queue_id] = queue
        self._of_topic.setdefault(queue.topic, {})[queue.queue_id] = queue
        queue.segments.set_counter(self._count)

    def _unregister(self, queue: ConsumeQueue) -> None:
        if self._table.pop((queue.topic, queue.queue_id), None) is not None:
            queues = self._of_topic[queue.topic]
            del queues[queue.queue_id]
            if not queues:
                del self._of_topic[queue.topic]
        queue.segments.set_counter(None)

    def queue_for_record(self, topic: bytes, queue_id: int) -> tuple[str, ConsumeQueue | None]:
        """Return the queue of a record with this topic and queue id, or the reason why it cannot have one."""
        try:
            return "", self.get_or_create(topic.decode("utf-8", "replace"), queue_id)
        except MessageRefused as fault:
            return str(fault), None

    def by_id(self, topic: str) -> Mapping[int, ConsumeQueue]:
        """Return the queues of a topic as they are, opened or not; empty if it has none."""
        return self._of_topic.get(topic, _NO_QUEUES)

    def all(self) -> list[ConsumeQueue]:
        return list(self._table.values())

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        return list(self._of_topic.get(topic, {}).values())

    def has_file(self, path: str) -> bool:
        """Return whether `path` is a file of a queue."""
        directory, _, name = path.rpartition("/")
        topic, _, queue_id = directory.removeprefix(f"{self._root}/").rpartition("/")
        queue = self._table.get((topic, int(queue_id))) if queue_id.isdecimal() and name.isdecimal() else None
        return queue is not None and queue.segments.directory == directory and int(name) in queue.segments.bases

    def file_count(self) -> int:
        """Return the number of files of all queues: a counter, because every flush needs it."""
        return self._count.files

    def has_messages(self, topic: str, queue_id: int) -> bool:
        """Return whether anything is stored in a queue."""
        queue = self._table.get((topic, queue_id))
        return queue is not None and self._has_entries(queue)

    def _has_entries(self, queue: ConsumeQueue) -> bool:
        return bool(queue.segments.bases) or queue in self.collected

    def end_by_entries(self) -> int:
        """Return the end of the last record that a queue has an entry for, without opening any queue."""
        return max((queue.end_by_entries() for queue in self._table.values() if queue.segments.bases), default=0)

    def topics(self) -> dict[str, list[int]]:
        entries: dict[str, list[int]] = {}
        for topic, queues in self._of_topic.items():
            if ids := sorted(queue_id for queue_id, queue in queues.items() if self._has_entries(queue)):
                entries[topic] = ids
        return entries

    def remember_tail(self, queue: ConsumeQueue) -> None:
        """Bound the number of queues with entries in memory: the one that was added first drops its entries."""
        if queue not in self._tails:
            self._tails[queue] = None
            if len(self._tails) > TAILS_MAX:
                oldest = next(iter(self._tails))
                del self._tails[oldest]
                oldest.clear_tail()

    def take_changed(self) -> tuple[list[str], list[str]]:
        """Return the files and directories (inner ones first) that the flush which begins now has to fsync."""
        changed = sorted(self.changed.files), sorted(self.changed.directories, reverse=True)
        self.changed.files.clear()
        self.changed.directories.clear()
        return changed

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Return entries of a queue from `offset` on: commit log offset, record size, tags code. Fewer at the queue's end."""
        queue = self.get_opened(topic, queue_id)
        entries: list[tuple[int, int, int]] = []
        while queue is not None and len(entries) < count and offset + len(entries) < queue.max:
            entries += ENTRY.iter_unpack(queue.entries(offset + len(entries), count - len(entries)))
        return entries

    def last_store_ms(self, queue: ConsumeQueue) -> int | None:
        """Return the store time of the last record of an opened queue; None if there is none, or it cannot be read."""
        data = queue.entries(queue.max - 1, 1) if queue.last_end else b""
        if len(data) < ENTRY_SIZE:
            return None
        offset, size, _ = ENTRY.unpack(data)
        try:
            return parse_record(self._read(offset, size), 0, offset, size + FILLER_SIZE, check_crc=False).store_ms
        except NotARecord:
            return None

    def find_expired(self, queues: list[ConsumeQueue], log_start: int) -> list[ConsumeQueue]:
        """Return the queues whose records are all removed from the log, unless a put is pending for them."""
        opened = [self.get_opened(queue.topic, queue.queue_id) for queue in queues]
        return [q for q in opened if q is not None and 0 < q.last_end <= log_start and q.next_offset == q.max]

    def remove(self, queues: list[ConsumeQueue]) -> None:
        """Delete these queues with their files."""
        topics = set()
        for queue in queues:
            self._unregister(queue)
            self.collected.remove(queue)
            self._tails.pop(queue, None)
            if self._disk.size(queue.segments.directory) is not None:
                queue.segments.remove_all()
                topics.add(queue.topic)
        for topic in sorted(topics):
            if not self._disk.listdir(f"{self._root}/{topic}"):
                self._disk.remove_dir(f"{self._root}/{topic}")
        self._disk.fsync_dir(self._root)


def _not_yet(offset: int, length: int) -> bytes:
    raise AssertionError(f"a queue was opened before the log was recovered ({offset}, {length})")

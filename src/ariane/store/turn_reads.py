"""What the pulls of a turn read: entries and bounds of their queues, and the file of the log with their records.

    begin ─► per pull: find ─► entries, start and end of the queue ─► source: a map of the log, limits of the responses

Nothing is put or dispatched between `begin` and the responses, except that `find` dispatches what its reader is to see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ariane.kernels.pulls.pull_answers import PullSource
from ariane.kernels.pulls.pull_selection import FileMap
from ariane.protocol.records.queue_entry import ENTRY_SIZE
from ariane.store.log.commit_log import CommitLog
from ariane.store.queues.consume_queue import ConsumeQueue
from ariane.store.queues.consume_queues import ConsumeQueues
from ariane.store.types import StoreConfig
from ariane.store.writing.store_dispatcher import StoreDispatcher

AHEAD_QUEUES_MAX = 1_000  # queues with entries that are read ahead, 5 KB each, up to 21 KB with a filter


class TurnReads:
    """Finds what the pulls of a turn read, one topic after another.

    Args:
        dispatcher: Writes the entries that a reader is to see.
        find_readable: Returns a queue with all messages that a consumer may see; None if it does not exist.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        dispatcher: StoreDispatcher,
        find_readable: Callable[[str, int], ConsumeQueue | None],
    ) -> None:
        self.file_size = log.size  # of a file of the log
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._find_readable = find_readable
        self._log_start = 0  # of this turn
        self._has_collected = False  # whether some queues have entries that are not written yet
        self._topic = ""  # of the next pulls
        self._by_id: Mapping[int, ConsumeQueue] = {}  # its queues
        self._ahead: set[ConsumeQueue] = set()  # queues whose entries were read ahead

    def begin(self) -> None:
        self._dispatcher.dispatch_before_reading()
        self._log_start = self._log.start
        self._has_collected = self._queues.collected.records > 0

    def select_topic(self, topic: str) -> None:
        """Read queues of this topic from now on."""
        self._topic, self._by_id = topic, self._queues.by_id(topic)

    def find(self, queue_id: int, number: int, count: int) -> tuple[bytes, int, int] | None:
        """Return up to `count` entries from `number` on, and start and end of the queue; None without entries.

        Raises:
            OSError: they cannot be read.
        """
        queue = self._by_id.get(queue_id)
        if queue is None or not queue.opened or (self._has_collected and queue in self._queues.collected):
            queue = self._find_readable(self._topic, queue_id)
            if queue is None:
                return None
        low, high = queue.min_offset(self._log_start), queue.max
        if not low <= number < high:
            return None
        entries = queue.read_ahead(number, count)
        if queue.ahead and queue not in self._ahead:
            self._remember(queue)
        if not entries or len(entries) % ENTRY_SIZE:
            return None
        return entries, low, high

    def source(self, base: int, config: StoreConfig, turn_bytes: int) -> tuple[FileMap, PullSource] | None:
        """Return the map of the log file at `base` and what limits the responses; None if it cannot be mapped.

        Raises:
            OSError: the file cannot be opened.
        """
        log_map = self._log.segments.map(base)
        if log_map is None:
            return None
        return log_map, PullSource(
            base,
            self._log.size,
            self._log_start,
            self._log.end - config.memory_bytes,
            config.transfer_count_in_memory,
            config.transfer_bytes_in_memory,
            config.transfer_count_on_disk,
            config.transfer_bytes_on_disk,
            turn_bytes,
        )

    def _remember(self, queue: ConsumeQueue) -> None:
        if len(self._ahead) >= AHEAD_QUEUES_MAX:
            for other in self._ahead - {queue}:
                other.ahead = b""
            self._ahead.clear()
        self._ahead.add(queue)

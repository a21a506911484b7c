"""Timers: messages with a delivery time of their own, in the order of that time.

    timer queue    | 0 | 1 | 2 | 3 | 4 |          in order of arrival
                             ^ position           entries below it were pushed to the pending deliveries
    pending        (due ms, number) ...          in order of due time: `head` is the next

The pending deliveries are derived from the timer queue and can be rebuilt from it. [TimerMessageStore of 5.x]
"""

from __future__ import annotations

from ariane.store.delays.delay_queues import DelayQueues
from ariane.store.delays.delivery_log import DeliveryLog
from ariane.store.delays.pending_deliveries import Key, PendingDeliveries, WrittenRun
from ariane.store.disk.files import OpenFiles


class Timers:
    """Pending timers of one store."""

    def __init__(self, files: OpenFiles, directory: str, queues: DelayQueues, deliveries: DeliveryLog) -> None:
        # Entries of the timer queue below this number are pending or delivered.
        self.position = 0
        # Those below this number are in runs, so a start does not have to read them again.
        self.written_position = 0
        # Timers that arrived after others with a later due time were delivered: `last` does not cover them.
        self.late_entries: set[int] = set()
        self._queues = queues  # the timer queue: entries have the due time as tags code
        self._deliveries = deliveries  # timers that are settled already
        self._pending = PendingDeliveries(files, directory)  # timers in the order of their due times

    def __len__(self) -> int:
        """Return the number of pending timers, including cancelled ones that are not due yet."""
        return len(self._pending)

    @property
    def last(self) -> Key:
        """Greatest timer that was delivered."""
        return self._pending.last

    # --- reading the queue ---

    def queue_bounds(self) -> tuple[int, int]:
        """Return the numbers of the first entry in the log and of the next entry of the timer queue."""
        queue = self._queues.timers()
        return (0, 0) if queue is None else (queue.min_offset(self._queues.log_start), queue.max)

    def read_queue(self, *, done: Key, seen: int) -> None:
        """Push the new entries of the timer queue.

        Args:
            done: entries below `seen` are delivered if they are due at or before this key.
            seen: number of the first entry that is pending whatever its due time.
        """
        queue = self._queues.timers()
        if queue is None or queue.max <= self.position:
            return
        last = self._pending.last
        for entry in self._queues.entries(queue, self.position):
            key = (self._queues.due_ms(entry), entry.number)
            # A timer in `delivered` is pushed, too, if others before it are pending (their deliveries may be in a corrupt
            # range of the log): it is settled when it reaches the head.
            if entry.number >= seen or key > done:
                self._pending.push(key)
                if key <= last:
                    self.late_entries.add(entry.number)
            else:
                self._deliveries.delivered.discard(entry.number)
        self.position = queue.max

    # --- delivery ---

    def head(self) -> Key | None:
        """Return the timer that is due first, settled or not; None if there is none."""
        return self._pending.head()

    def advance(self, key: Key) -> None:
        """Remove `key`, the head: it was delivered or is settled."""
        self.late_entries.discard(key[1])
        self._pending.advance(key)

    def is_pending(self, number: int, due_ms: int) -> bool:
        """Return whether the timer with this number and due time will be delivered."""
        if self._deliveries.is_settled(number) or number >= self.position:
            return False
        return (due_ms, number) > self._pending.last or number in self.late_entries

    def before(self, log_offset: int) -> list[Key]:
        """Return the pending timers whose records end before `log_offset`, in order of arrival."""
        queue = self._queues.timers()
        if queue is None:
            return []
        low, high = queue.min_offset(self._queues.log_start), queue.min_offset(log_offset)
        if high <= low:
            return []
        keys = {key for key in self._pending.below(high) if self.is_pending(key[1], key[0])}
        return sorted(keys, key=lambda key: key[1])

    # --- the saved state ---

    def load_runs(self, runs: list[int], next_run: int, done: Key) -> None:
        """Open the saved runs.

        Raises:
            CorruptRun: a run is missing or damaged; call `clear` and read the whole queue instead.
        """
        self._pending.load(runs, next_run, done)

    def clear(self) -> None:
        """Forget all pending timers."""
        self._pending.clear()

    def begin_write(self, up_to: int) -> WrittenRun | None:
        """Return a run of entries below `up_to` to write, if there are enough for one."""
        self._pending.drop_exhausted()
        run = self._pending.begin_write(up_to)
        if run is not None:
            self.written_position = run.up_to
        return run

    def listed_runs(self, run: WrittenRun | None) -> list[int]:
        """Return the runs that the state lists once `run` is written."""
        runs = set(self._pending.runs)
        return sorted(runs if run is None else runs - set(run.merged) | {run.number})

    @property
    def next_run(self) -> int:
        """Number of the next run."""
        return self._pending.next_run

    def end_write(self, runs: list[int], *, written: bool, position: int) -> None:
        """Finish `begin_write`.

        Args:
            runs: runs that the durable state lists; the files of others are removed if `written`.
            written: the run and the state are durable; otherwise the entries stay in memory.
            position: written position of the durable state.
        """
        if not written:
            self.written_position = position
        self._pending.end_write(written=written)
        if written:
            self._pending.remove_other_files(runs)

"""The guarantees of the store after a crash, as functions: the tests run them on the unmodified store, `test_planted_faults` on a
store with a deliberate fault. Each raises if a guarantee is violated.

A workload is sent to a store on a fake disk; a fault hits the disk; the store is opened on the surviving data and checked: it
opens, has every acknowledged message and no unsent one, accepts new messages, and is the same when it is opened again.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

from runs import put_run

import ci_form
from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.lifecycle.topic_deletion import TopicRemover
from ariane.broker.state.loading.saved_state import SavedState
from ariane.broker.state.pop_table import PopQueueEntry
from ariane.broker.state.saved.change_records import (
    MessageHidden,
    MessagesAcknowledged,
    MessagesReturned,
    MessagesTaken,
)
from ariane.broker.state.topic_registry import builtin_topics
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.errors import FlushFailed, ProtocolError, StoreError, StoreFull
from ariane.model import host
from ariane.model.message import MessageQueue
from ariane.model.topic import AUTO_CREATE_TOPIC, SubscriptionGroupConfig, TopicConfig
from ariane.protocol.records import record
from ariane.protocol.requests.clients import WireQueue
from ariane.store.check import store_check as check
from ariane.store.message_store import GetStatus, MessageStore, RecordDraft, StoreConfig, open_store
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk, PowerLost, SurvivingData

HOST = host.pack("127.0.0.1", 10911)
CONFIG = StoreConfig(root="/store", commit_log_size=1024, consume_queue_size=200, flush="sync")
ASYNC_CONFIG = StoreConfig(root="/store", commit_log_size=1024, consume_queue_size=200, flush="async")
SEEDS = range(ci_form.number("ARIANE_SEEDS", short=1, long=4))  # one finds every planted fault, as ten did
FATES = [
    (SurvivingData.NONE, 0),
    (SurvivingData.ALL, 0),
    *((SurvivingData.SOME, seed) for seed in SEEDS),
    *((SurvivingData.TORN, seed) for seed in SEEDS),
]
QUEUE_ID_AT, QUEUE_OFFSET_AT, BODY_AT = 12, 20, 88  # fields of a record
START_MS = 1_700_000_000_000


class Broken(AssertionError):
    """A guarantee of the store is violated."""


def require(holds: object, what: str) -> None:
    if not holds:
        raise Broken(what)


def opened(disk: FakeDisk, config: StoreConfig = CONFIG) -> MessageStore:
    clock = FakeClock(START_MS, tick_ms=1)
    return open_store(config, disk, now_ms=clock.now_ms, store_host=HOST)


def draft(body: bytes, queue_id: int = 0, topic: str = "T") -> RecordDraft:
    return RecordDraft(
        topic=topic, queue_id=queue_id, body=body, born_ms=1, born_host=HOST, tags="a", properties="TAGS\x01a"
    )


class Sent:
    """A producer's view: bodies sent, and the offsets of acknowledged messages."""

    def __init__(self) -> None:
        self.put: set[bytes] = set()
        self.acknowledged: dict[int, bytes] = {}


def workload(store: MessageStore, sent: Sent, count: int = 20) -> None:
    """Send single messages and batches to three queues, flushed as a broker does; queue files and checkpoint now and then."""
    waiting: dict[int, bytes] = {}
    for number in range(count):
        bodies = [b"%d.%d" % (number, part) * (1 + number % 3) for part in range(1 + number % 3)]
        sent.put.update(bodies)
        drafts = [draft(body, number % 2, "T" if number % 4 else "U") for body in bodies]
        placed = [store.put(drafts[0])] if len(drafts) == 1 else store.put_batch(drafts)
        waiting.update(zip((item.offset for item in placed), bodies, strict=True))
        if number % 4 == 3:
            flush = store.begin_flush()
            require(flush is not None, "there is something to flush")
            if flush is not None:
                flush.run()
                store.end_flush(flush, None)
            sent.acknowledged.update(waiting)
            waiting.clear()
        store.dispatch_pending()
        if number % 9 == 8:
            store.write_checkpoint()


def stored(store: MessageStore) -> dict[int, bytes]:
    """Return all messages that consumers can read, by commit-log offset. Require that each record has the queue offset it is
    read at."""
    results = {}
    for topic, queue_ids in store.topics().items():
        for queue_id in queue_ids:
            offset = store.min_offset(topic, queue_id)
            while offset < store.max_offset(topic, queue_id):
                result = store.get(topic, queue_id, offset, 32)
                require(
                    result.status in (GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING),
                    f"{topic} {offset}: {result.status}",
                )
                require(result.next_offset > offset, f"reading {topic} goes on behind {offset}")
                for data in result.records:
                    item = record.decode(data)
                    require(
                        (item.topic, item.queue_id) == (topic, queue_id), f"{item} was read from {topic}-{queue_id}"
                    )
                    require(offset <= item.queue_offset < result.next_offset, f"{item} was read at {offset}")
                    require(item.crc_is_right(), f"the CRC of {item}")
                    offset = item.queue_offset + 1
                    results[item.offset] = item.body
                offset = result.next_offset
    return results


def judge(disk: FakeDisk, sent: Sent, config: StoreConfig = CONFIG, *, is_damaged: bool = False) -> None:
    """Check the guarantees on the surviving disk. `is_damaged`: the damage is outside the range that a start reads."""
    store = opened(disk, config)
    result = stored(store)
    lost = sent.acknowledged.items() - result.items()
    require(not lost, f"acknowledged and not there: {lost}")
    require(set(result.values()) <= sent.put, f"never sent: {set(result.values()) - sent.put}")
    for offset, body in sent.acknowledged.items():
        data = store.read_record(offset)
        require(data is not None and record.decode(data).body == body, f"the record at {offset}")
    more = store.put(draft(b"after"))
    require(not any(offset >= more.offset for offset in result), "new records stand behind all others")
    store.flush()
    store.dispatch_pending()
    after = stored(store)
    require(after == {**result, more.offset: b"after"}, f"{after} is {result} and one more")
    store.close()
    repeated = opened(disk, config)
    require(repeated.recovery_report.clean, "the store was closed in order")
    require(stored(repeated) == after, "opened again it holds the same")
    repeated.close()
    unsound = [item for item in check.check(config.root, disk) if not _is_allowed(item)]
    require(is_damaged or not unsound, f"a store that was brought into order has findings: {unsound}")


def _is_allowed(one: check.CheckFinding) -> bool:
    """Return whether a finding is allowed after a crash: overwritten corrupt ranges, and empty entries of queues with lost
    records."""
    return one.severity == check.NOTE or "overwritten by a start" in one.message or "are empty" in one.message


def power_lost_at_every_change(kept: SurvivingData, seed: int) -> int:
    """Lose power at every change of the workload. Return the number of changes."""
    cut = 0
    while True:
        cut += 1
        disk, sent = FakeDisk(), Sent()
        disk.power_off_at = cut
        try:
            store = opened(disk)
            workload(store, sent)
            store.close()
        except PowerLost:
            judge(disk.after_power_loss(kept, random.Random(seed * 1000 + cut)), sent)
            continue
        judge(disk.after_power_loss(kept, random.Random(seed)), sent)
        return cut - 1


def workload_of_runs(store: MessageStore, sent: Sent, flushed: dict[int, bytes]) -> None:
    """Send runs and single messages; write collected entries for readers and in rounds, with flushes and checkpoints between.

    `sent` acknowledges what is put, `flushed` has what is on the disk.
    """
    for number in range(24):
        sends = [(part % 3, b"run %d.%d" % (number, part)) for part in range(1 + number % 5)]
        sent.put.update(body for _, body in sends)
        placed = put_run(store, "T" if number % 4 else "U", sends)
        if placed is not None:
            sent.acknowledged.update(placed)
        if number % 3 == 0 or placed is None:
            sent.put.add(b"single %d" % number)
            single = store.put(draft(b"single %d" % number, number % 3))
            sent.acknowledged[single.offset] = b"single %d" % number
            store.dispatch_singles()
        if number % 4 == 1:
            store.max_offset("T", number % 3)
        if number % 2:
            store.dispatch_round(1 + number % 3)
        if number % 5 == 4:
            store.flush()
            flushed.update(sent.acknowledged)
        if number % 6 == 4:
            store.write_checkpoint()


def runs_lost_at_every_change(kept: SurvivingData, seed: int) -> int:
    """Lose power, or be killed, at every change of a workload of runs. Return the number of changes."""
    cut = 0
    while True:
        cut += 1
        disk, sent, flushed = FakeDisk(), Sent(), dict[int, bytes]()
        disk.power_off_at = cut
        try:
            store = opened(disk, ASYNC_CONFIG)
            workload_of_runs(store, sent, flushed)
            store.close()
        except PowerLost:
            judge(disk.after_kill(), sent, ASYNC_CONFIG)
            sent.acknowledged = flushed
            # Unflushed entries that survived after lost ones stay beyond the end of their queue until they are overwritten.
            remaining = disk.after_power_loss(kept, random.Random(seed * 1000 + cut))
            judge(remaining, sent, ASYNC_CONFIG, is_damaged=True)
            continue
        judge(disk.after_power_loss(kept, random.Random(seed)), sent, ASYNC_CONFIG)
        return cut - 1


def power_lost_again_while_recovering(kept: SurvivingData, seed: int) -> None:
    """The log also has a damaged record before good ones, so that the recovery writes to the disk."""
    first, sent = FakeDisk(), Sent()
    store = opened(first)
    workload(store, sent)
    store.flush()
    sent.acknowledged.update(stored_log(store))
    remaining = first.after_power_loss(kept, random.Random(seed))
    if seed % 2:
        remaining.remove("/store/checkpoint")
        victim = sorted(sent.acknowledged)[3]
        damage(remaining, CONFIG, victim + 4, b"\xff")
        del sent.acknowledged[victim]
    probe = remaining.after_kill()
    opened(probe)
    for cut in range(1, probe.changes + 1):
        disk = remaining.after_kill()
        disk.power_off_at = cut
        try:
            opened(disk)
        except PowerLost:
            judge(disk.after_power_loss(kept, random.Random(cut)), sent)


def killed_then_power_lost() -> None:
    """Kill the process at each change and open the store again: messages read from then on survive a power loss."""
    cut = 0
    while True:
        cut += 1
        disk, sent = FakeDisk(), Sent()
        disk.power_off_at = cut
        try:
            workload(opened(disk), sent)
        except PowerLost:
            remaining = disk.after_kill()
            result = stored(opened(remaining))
            require(result.items() >= sent.acknowledged.items(), "a kill loses nothing")
            sent.acknowledged = result
            for surviving, seed in FATES[:4]:
                judge(remaining.after_power_loss(surviving, random.Random(seed)), sent)
            continue
        return


def numbers_torn() -> int:
    """Tear the queue id or queue offset of unacknowledged records and nothing else. Return the number of cases.

    The queues are unchanged, also after a later rebuild, with and without the checkpoint.
    """
    cases = 0
    for field, size in ((QUEUE_ID_AT, 4), (QUEUE_OFFSET_AT, 8)):
        for acknowledged, torn, has_checkpoint in itertools.product((1, 2, 3), (1, 2), (False, True)):
            disk, sent = FakeDisk(), Sent()
            store = opened(disk)
            for number in range(acknowledged):
                body = b"acknowledged %d" % number
                sent.put.add(body)
                sent.acknowledged[store.put(draft(body)).offset] = body
            store.flush()
            store.dispatch_pending()
            if has_checkpoint:
                store.write_checkpoint()
            sent.put.update(b"torn %d" % number for number in range(torn))
            queue_id = 1 if field == QUEUE_ID_AT else 0
            lost = [store.put(draft(b"torn %d" % number, queue_id)).offset for number in range(torn)]
            remaining = disk.after_power_loss(SurvivingData.ALL, random.Random(0))
            for offset in lost:
                damage(remaining, CONFIG, offset + field, bytes(size))
            judge(remaining, sent)
            before = stored(opened(remaining.after_kill()))
            queues = [path for path in remaining.paths() if "/consumequeue/" in path]
            for missing in (queues, [*queues, "/store/checkpoint"]):
                rebuilt = remaining.after_kill()
                for path in missing:
                    rebuilt.remove(path)
                require(stored(opened(rebuilt)) == before, f"rebuilt without {missing} it holds the same")
            cases += 1
    return cases


def record_within_a_body() -> None:
    """Damage a message whose body contains a stored record: the inner record must not be read as a record of the log."""
    disk, sent = FakeDisk(), Sent()
    store = opened(disk)
    inner = store.put(draft(b"stored elsewhere"))
    store.flush()
    store.dispatch_pending()
    within = store.get("T", 0, 0, 1).records[0]
    outer = store.put(draft(within + b" and more"))
    last = store.put(draft(b"last"))
    store.flush()
    sent.put.update((b"stored elsewhere", b"last"))
    sent.acknowledged = {inner.offset: b"stored elsewhere", last.offset: b"last"}
    remaining = disk.after_kill()
    damage(remaining, CONFIG, outer.offset, b"\xff" * 8)
    judge(remaining, sent)


def stored_log(store: MessageStore) -> dict[int, bytes]:
    """Return all flushed messages: those visible to consumers after a step."""
    store.dispatch_pending()
    return stored(store)


def damage(disk: FakeDisk, config: StoreConfig, offset: int, data: bytes) -> None:
    """Overwrite bytes of the commit log."""
    within = offset % config.commit_log_size
    disk.contents(f"{config.root}/commitlog/{offset - within:020d}")[within : within + len(data)] = data


def last_write_torn_at_every_byte() -> None:
    last = draft(b"the last message, which is torn", 1)
    disk, sent = FakeDisk(), Sent()
    store = opened(disk)
    workload(store, sent)
    size = store.put(last).size
    for torn_at in range(size):
        disk, sent = FakeDisk(), Sent()
        store = opened(disk)
        workload(store, sent)
        sent.put.update((b"the last message, which is torn",))
        disk.power_off_at, disk.torn_at = disk.changes + 1, torn_at
        try:
            store.put(last)
        except PowerLost:
            judge(disk.after_kill(), sent)


def derived_write_torn_at_every_byte() -> int:
    """Tear each write of a queue file or of the checkpoint at each of its bytes. Return the number of cases."""
    cases = 0
    for number, size in derived_writes():
        for torn_at in range(min(size, 64)):  # the rest of a checkpoint is zeros
            disk, sent = FakeDisk(), Sent()
            disk.power_off_at, disk.torn_at = number, torn_at
            try:
                workload(opened(disk), sent)
            except PowerLost:
                judge(disk.after_kill(), sent)
                judge(disk.after_power_loss(SurvivingData.SOME, random.Random(number)), sent)
                cases += 1
    return cases


def derived_writes() -> list[tuple[int, int]]:
    """Return numbers and lengths of the changes that write a queue file or the checkpoint."""
    writes: list[tuple[int, int]] = []
    disk = FakeDisk()
    plain = disk.pwrite

    def pwrite(handle: int, data: bytes, offset: int) -> None:
        plain(handle, data, offset)
        path = disk._handles[handle][0]
        if "/consumequeue/" in path or path.endswith("/checkpoint"):
            writes.append((disk.changes, len(data)))

    disk.pwrite = pwrite  # type: ignore[method-assign]
    workload(opened(disk), Sent())
    return writes


def derived_files_lost() -> None:
    """Remove the checkpoint, all files of a queue, or any file of it but the first (retention removes those in order)."""
    disk, sent = FakeDisk(), Sent()
    store = opened(disk)
    workload(store, sent, 60)
    store.close()
    everything = stored(opened(disk.after_kill()))
    queues: dict[str, list[str]] = {}
    for path in disk.paths():
        if "/consumequeue/" in path:
            queues.setdefault(path.rpartition("/")[0], []).append(path)
    losses = [["/store/checkpoint"], *queues.values(), *([file] for files in queues.values() for file in files[1:])]
    require(len(losses) > 6, "there is something to lose")
    for lost in losses:
        remaining = disk.after_kill()
        for path in lost:
            remaining.remove(path)
        store = opened(remaining)
        require(stored(store) == everything, f"made again: {lost}")
        store.close()


def changes_failed_in_turn(kind: str, code: int = errno.EIO) -> int:
    """Fail each fsync, write, creation ... of a workload once. Return the number of cases. Unacknowledged work is not retried."""
    number = 0
    while True:
        number += 1
        disk, sent = FakeDisk(), Sent()
        store = opened(disk)
        left = number

        def fail(what: str, path: str) -> None:
            nonlocal left
            if what == kind:
                left -= 1
                if left == 0:
                    raise OSError(code, "injected", path)

        disk.fail = fail
        error: BaseException | None = None
        try:
            workload(store, sent)
        except (OSError, StoreError) as met:
            error = met
        if left > 0:
            return number - 1
        require(error is not None, f"{kind} number {number} failed without an error")
        disk.fail = lambda what, path: None
        if kind in ("fsync", "fsync_dir"):
            _stopped(store, sent, error)
        else:
            require(isinstance(error, StoreError), f"a failed {kind} is reported as {error!r}")
            require(stored(store).items() >= seen(sent, store).items(), "reads go on")
        store.close()
        judge(disk.after_kill(), sent)


def seen(sent: Sent, store: MessageStore) -> dict[int, bytes]:
    """Return the messages that consumers must be able to read: acknowledged before the last successful step."""
    behind = min(store.flushed, store._dispatcher.dispatched)
    return {offset: body for offset, body in sent.acknowledged.items() if offset < behind}


def _stopped(store: MessageStore, sent: Sent, error: BaseException | None) -> None:
    """Check the store after a failed fsync: writes are rejected, flushed messages and no others are readable."""
    flush = store._log._flushing
    if flush is not None and isinstance(error, OSError):
        store.end_flush(flush, error)
    for _ in range(2):
        try:
            store.put(draft(b"never"))
        except FlushFailed:
            continue
        raise Broken("a put was taken after a failed fsync")
    require(stored(store).items() <= sent.acknowledged.items(), "nothing is read that is not flushed")


def full_disk() -> None:
    """Limit the free space to each amount: writes are rejected, reads continue, and writes work again once there is space."""
    for room in range(0, 400, 7):
        disk, sent = FakeDisk(), Sent()
        store = opened(disk)
        workload(store, sent)
        store.flush()
        sent.acknowledged.update(stored_log(store))
        disk.room = room
        refused = 0
        for number in range(6):
            body = b"maybe room %d" % number
            sent.put.add(body)
            try:
                placed = store.put(draft(body))
                store.flush()
                sent.acknowledged[placed.offset] = body
                store.dispatch_pending()
            except StoreFull:
                refused += 1
        require(refused, f"{room} bytes took six messages")
        require(stored(store).items() >= seen(sent, store).items(), "reads go on")
        disk.room = None
        placed = store.put(draft(b"room again"))
        store.flush()
        store.dispatch_pending()
        sent.put.add(b"room again")
        sent.acknowledged[placed.offset] = b"room again"
        require(stored(store).items() >= sent.acknowledged.items(), "writes go on")
        judge(disk.after_power_loss(SurvivingData.NONE, random.Random(room)), sent)


def unflushed_is_unread() -> None:
    """Require that in sync mode no unflushed message is readable, by queue or by offset."""
    store = opened(FakeDisk())
    placed = store.put(draft(b"soon"))
    require(store.dispatch_pending() == [], "nothing arrives before the flush")
    require(store.get("T", 0, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE, "nothing is in the queue")
    require(store.read_record(placed.offset) is None, "nothing is at the offset")
    flush = store.begin_flush()
    require(flush is not None and store.dispatch_pending() == [], "a flush that has only begun counts for nothing")
    if flush is not None:
        flush.run()
        require(store.dispatch_pending() == [], "a flush without `end_flush` counts for nothing")
        store.end_flush(flush, None)
    require([arrival.max_offset for arrival in store.dispatch_pending()] == [1], "it arrives")
    require(store.read_record(placed.offset) is not None, "it is at its offset")
    store.close()


def damaged_in_the_middle() -> None:
    """Damage each record in turn, with the checkpoint after it, before it, and missing: all other records stay readable.

    A start reads nothing below the checkpoint, and a read verifies a record's header, not the CRC of its body.
    """
    disk, sent = FakeDisk(), Sent()
    store = opened(disk)
    workload(store, sent, 24)
    store.flush()
    sent.acknowledged.update(stored_log(store))
    places = sorted(sent.acknowledged)
    for is_known in (True, False):
        for number, position in enumerate(places[:-1]):
            remaining = disk.after_kill()
            if not is_known:
                remaining.remove("/store/checkpoint")
            damage(remaining, CONFIG, position + (4 if is_known or number % 2 else BODY_AT), b"\xff\xff")
            remain = Sent()
            remain.put = sent.put
            remain.acknowledged = {offset: body for offset, body in sent.acknowledged.items() if offset != position}
            judge_told(remaining, remain, position)
            judge(remaining, remain, is_damaged=is_known)


def judge_told(disk: FakeDisk, sent: Sent, place: int) -> None:
    """Require that a start that skips a corrupt range reports it."""
    store = opened(disk.after_kill())
    if store.recovery_report.dispatch_from <= place:
        require(
            any(hole.offset == place for hole in store.recovery_report.corrupt_ranges),
            f"the corrupt range at {place} is reported",
        )
        require(
            any(str(place) in note for note in store.recovery_report.notes),
            f"{store.recovery_report.notes} name {place}",
        )
    store.close()


FLIP_CONFIG = StoreConfig(root="/store", commit_log_size=65536, consume_queue_size=4000, flush="sync")


class Flips:
    """A full segment of 64 KB, a few records after it, and no checkpoint, so that a start reads the whole log."""

    def __init__(self) -> None:
        chance = random.Random(7)
        self.disk = FakeDisk()
        self.sent = Sent()
        self.sizes: dict[int, int] = {}
        store = opened(self.disk, FLIP_CONFIG)
        number = 0
        while store.commit_log_max < FLIP_CONFIG.commit_log_size + 1000:
            body = b"%d:" % number + chance.randbytes(chance.randrange(20, 900))
            placed = store.put(draft(body, number % 3, "TU"[number % 2]))
            self.sent.put.add(body)
            self.sent.acknowledged[placed.offset] = body
            self.sizes[placed.offset] = placed.size
            number += 1
        store.flush()
        self.disk = self.disk.after_power_loss(SurvivingData.ALL, chance)
        self.file = f"/store/commitlog/{0:020d}"
        self.starts = sorted(self.sizes)

    def victim(self, byte: int) -> int | None:
        """Return the offset of the record that contains `byte`; None after the last record of the file."""
        position = max(start for start in self.starts if start <= byte)
        return position if byte < position + self.sizes[position] else None

    def judge(self, bit: int) -> None:
        """Flip this bit: all other records are readable, and no unsent message is returned."""
        byte = bit // 8
        disk = self.disk.after_kill()
        disk.contents(self.file)[byte] ^= 1 << bit % 8
        store = opened(disk, FLIP_CONFIG)
        victim = self.victim(byte)
        result = bodies(store)
        lost = {
            position
            for position in self.sent.acknowledged
            if position != victim and result.get(position) != self.sent.acknowledged[position]
        }
        require(len(lost) <= self._may_lose(victim, byte), f"bit {bit} of record {victim}: lost {sorted(lost)}")
        require(set(result.values()) <= self.sent.put, f"bit {bit}: something is read that was never sent")
        for position, body in self.sent.acknowledged.items():
            if position != victim:
                data = store.read_record(position)
                require(data is not None and record.decode(data).body == body, f"bit {bit}: the record at {position}")
        end = max(self.starts)
        require(store.commit_log_max == end + self.sizes[end], f"bit {bit}: the log ends at {store.commit_log_max}")
        placed = store.put(draft(b"after"))
        require(abs(placed.store_ms - START_MS) < 10_000_000_000, f"bit {bit}: stored at {placed.store_ms}")
        store.close()

    def _may_lose(self, victim: int | None, byte: int) -> int:
        """Return the number of further records that the flip may hide. No checksum covers queue id and topic: changed to those of
        another queue that expects this queue offset, they replace one record there, which stays readable by its offset only."""
        if victim is None:
            return 0
        topic_at = BODY_AT + len(self.sent.acknowledged[victim])
        within = byte - victim
        return 1 if QUEUE_ID_AT <= within < QUEUE_ID_AT + 4 or topic_at <= within <= topic_at + 1 else 0


def bodies(store: MessageStore) -> dict[int, bytes]:
    """Return all messages delivered to consumers, by offset; records with undecodable topic or properties are ignored."""
    results = {}
    for topic, queue_ids in store.topics().items():
        for queue_id in queue_ids:
            offset = store.min_offset(topic, queue_id)
            while offset < store.max_offset(topic, queue_id):
                result = store.get(topic, queue_id, offset, 32)
                require(result.next_offset > offset, f"reading {topic} goes on behind {offset}")
                for data in result.records:
                    try:
                        item = record.decode(data)
                    except ProtocolError:
                        continue
                    results[item.offset] = item.body
                offset = result.next_offset
    return results


# ----------------------------------------------------------------------------------------- configuration changed


class Inline(Executor):
    """Executor that runs submitted work immediately, so that a power loss in it ends the test's program as elsewhere."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        outcome: Future[Any] = Future()
        try:
            outcome.set_result(fn(*args, **kwargs))
        except Exception as error:
            outcome.set_exception(error)
        return outcome


class State(NamedTuple):
    """A broker's configuration as visible to administrators and consumers."""

    topics: dict[str, int]  # queues
    groups: dict[str, int]  # retries
    offsets: dict[str, dict[int, int]]
    locks: dict[str, dict[str, tuple[WireQueue, ...]]]
    bodies: dict[str, set[bytes]]  # by topic
    taken: dict[str, dict[str, dict[int, PopQueueEntry]]]  # by group, topic and queue


class Configured:
    """Store and state of a broker on a disk, without sockets. `acknowledge` does what a handler does before its response."""

    def __init__(self, disk: FakeDisk, config: StoreConfig = CONFIG) -> None:
        self.is_sync = config.flush == "sync"
        settings = BrokerConfig(
            broker_name="broker-a",
            store_path_root_dir=config.root,
            flush_disk_type="SYNC_FLUSH" if self.is_sync else "ASYNC_FLUSH",
        )
        clock = FakeClock(START_MS, tick_ms=1)
        saved = SavedState(disk, settings.config_dir)
        self.store = open_store(config, disk, now_ms=clock.now_ms, store_host=HOST, deletions=saved.load)
        self.tables = PersistentState(settings, disk, saved, Inline(), lambda: START_MS, lambda: 0.0)
        self.stats = BrokerStats("c", detail=False, fall_recorded=False, drop_unused=False, now_ms=lambda: 0.0)
        self.remover = TopicRemover(tables=self.tables, store=self.store, stats=self.stats)

    def acknowledge(self) -> None:
        if self.is_sync:
            self.tables.change_log.flush_blocking()
            self.store.flush()
        self.store.dispatch_pending()

    def create(self, topic: str, queues: int = 2) -> None:
        self.tables.topics.put(TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues))

    def send(self, topic: str, body: bytes, queue_id: int = 0) -> None:
        if self.tables.topics.get(topic) is None:
            self.tables.topics.create_from_template(AUTO_CREATE_TOPIC, topic, 2)
        self.store.put(draft(body, queue_id, topic))

    def lock(self, client_id: str, queue_id: int) -> None:
        self.tables.locks.lock("G", client_id, [MessageQueue("A", "broker-a", queue_id)], 0.0)

    def unlock(self, client_id: str, queue_id: int) -> None:
        self.tables.locks.unlock("G", client_id, [MessageQueue("A", "broker-a", queue_id)])

    def take(self, topic: str, *offsets: int) -> None:
        end = max(offsets) + 1
        self.tables.record_pop(MessagesTaken("G", topic, 0, offsets, at_ms=1, visible_ms=2, next=end))

    def end_delivery(self, topic: str, offset: int) -> None:
        self.tables.record_pop(MessagesAcknowledged("G", topic, 0, (offset,)))

    def hide(self, topic: str, offset: int) -> None:
        self.tables.record_pop(MessageHidden("G", topic, 0, offset, at_ms=3, visible_ms=4))

    def give_back(self, topic: str, offset: int) -> None:
        self.tables.record_pop(MessagesReturned("G", topic, 0, (offset,), at_ms=5))

    def commit(self, group: str, topic: str, offset: int) -> None:
        """Commit a consumer's offset and save it durably."""
        self.tables.offsets.commit(group, topic, 0, offset)

    def delete_group(self, group: str) -> None:
        self.tables.groups.delete(group, offsets=True)
        self.tables.offsets.remove_group(group)

    def state(self) -> State:
        tables = self.tables
        builtin = builtin_topics(BrokerConfig(broker_name="broker-a"))
        bodies: dict[str, set[bytes]] = {}
        for body, topic in ((stored_record.body, stored_record.topic) for stored_record in self._records()):
            bodies.setdefault(topic, set()).add(body)
        return State(
            {
                name: topic.write_queue_nums
                for name, topic in tables.topics.table().topic_config_table.items()
                if name not in builtin
            },
            {name: group.retry_max_times for name, group in tables.groups.table().subscription_group_table.items()},
            tables.offsets.table().offset_table,
            {group: held for group, held in tables.locks.table().lock_table.items() if held},
            bodies,
            {group: topics for group, topics in tables.pop.document().groups.items() if topics},
        )

    def _records(self) -> Iterator[record.Record]:
        for offset in sorted(stored(self.store)):
            data = self.store.read_record(offset)
            assert data is not None
            yield record.decode(data)

    def close(self) -> None:
        asyncio.run(self.tables.close())
        self.store.close()


CONFIGURING: tuple[tuple[str, Callable[[Configured], object]], ...] = (
    ("a topic is created", lambda broker: broker.create("A")),
    ("a message creates a topic", lambda broker: broker.send("B", b"b1")),
    ("a message is sent", lambda broker: broker.send("A", b"a1", 1)),
    (
        "a group is created",
        lambda broker: broker.tables.groups.put(SubscriptionGroupConfig(group_name="G", retry_max_times=3)),
    ),
    ("queue files are flushed before it is deleted", lambda broker: broker.store.write_checkpoint()),
    ("a group is created by use", lambda broker: broker.tables.groups.get_or_create("H")),
    ("documents are saved", lambda broker: asyncio.run(broker.tables.save())),
    ("a queue is locked", lambda broker: broker.lock("one", 0)),
    ("another queue is locked", lambda broker: broker.lock("two", 1)),
    (
        "an offset is committed and saved",
        lambda broker: (broker.commit("G", "A", 1), asyncio.run(broker.tables.save())),
    ),
    ("messages are taken", lambda broker: broker.take("A", 0, 1, 2)),
    ("one is acknowledged", lambda broker: broker.end_delivery("A", 1)),
    ("one is visible again later", lambda broker: broker.hide("A", 0)),
    ("one is given back", lambda broker: broker.give_back("A", 2)),
    ("a topic is changed", lambda broker: broker.create("A", 4)),
    ("a topic is deleted", lambda broker: broker.remover.remove("A")),
    ("it is created again", lambda broker: broker.create("A", 3)),
    ("a message is sent to it", lambda broker: broker.send("A", b"a2")),
    ("an offset in it is saved", lambda broker: (broker.commit("G", "A", 1), asyncio.run(broker.tables.save()))),
    ("a lock is given back", lambda broker: broker.unlock("one", 0)),
    ("queue files and checkpoint are flushed", lambda broker: broker.store.write_checkpoint()),
    (
        "a group is changed",
        lambda broker: broker.tables.groups.put(SubscriptionGroupConfig(group_name="G", retry_max_times=5)),
    ),
    ("another offset is saved", lambda broker: (broker.commit("H", "B", 1), asyncio.run(broker.tables.save()))),
    ("offsets are cloned", lambda broker: broker.tables.offsets.clone("H", "K", "B")),
    ("a group is deleted with its offsets", lambda broker: broker.delete_group("H")),
    ("every topic with messages is deleted", lambda broker: (broker.remover.remove("A"), broker.remover.remove("B"))),
    ("one is created once more by a message", lambda broker: broker.send("B", b"b2")),
    ("the broker stops", lambda broker: broker.close()),
)
NOT_ATOMIC = frozenset(
    {
        "an offset is committed and saved",
        "an offset in it is saved",
        "another offset is saved",
        "a message creates a topic",
        "one is created once more by a message",
        "every topic with messages is deleted",
    }
)


def configured_states(config: StoreConfig = CONFIG) -> list[State]:
    """Return the state before the first step of CONFIGURING, and after each step."""
    broker = Configured(FakeDisk(), config)
    states = [broker.state()]
    for _, step in CONFIGURING[:-1]:
        step(broker)
        broker.acknowledge()
        states.append(broker.state())
    return [*states, states[-1]]


def configuration_changed(fate: Callable[[FakeDisk, int], FakeDisk], config: StoreConfig = CONFIG) -> int:
    """End the program at each change of the disk; `fate` selects the surviving data. Every acknowledged step of CONFIGURING is
    applied with all its effects, the one in flight completely or not at all. Return the number of cases."""
    states = configured_states(config)
    cut = 0
    while True:
        cut += 1
        disk = FakeDisk()
        disk.power_off_at = cut
        done = -1
        try:
            broker = Configured(disk, config)
            done = 0
            for name, step in CONFIGURING:
                step(broker)
                if name != "the broker stops":
                    broker.acknowledge()
                done += 1
        except PowerLost:
            judge_configuration(fate(disk, cut), states, max(done, 0), config)
            continue
        judge_configuration(fate(disk, cut), states, len(CONFIGURING), config)
        return cut - 1


def held_changes_are_not_applied_again() -> None:
    """A document was saved, and the broker died before the file of its changes was removed."""
    disk = FakeDisk()
    broker = Configured(disk)
    broker.create("A")
    broker.commit("G", "A", 1)
    broker.remover.remove("A")
    broker.create("A")
    broker.commit("G", "A", 7)
    files = {path: bytes(disk.contents(path)) for path in disk.paths() if "/config/changes." in path}
    asyncio.run(broker.tables.save())
    remaining = disk.after_kill()
    for path, content in files.items():
        if remaining.size(path) is None:
            remaining.close(remaining.create(path, 0))
            remaining.contents(path)[:] = content
    result = Configured(remaining).state()
    require((result.topics, result.offsets) == ({"A": 2}, {"A@G": {0: 7}}), f"the saved state is {result}")


def judge_configuration(disk: FakeDisk, states: list[State], done: int, config: StoreConfig) -> None:
    """Check the state on the disk after `done` acknowledged steps."""
    allowed = states[done : done + 2]
    name = CONFIGURING[done][0] if done < len(CONFIGURING) else "the end"
    for opening in ("opened", "opened again after a kill", "opened again after a stop"):
        broker = Configured(disk, config)
        result = broker.state()
        if name in NOT_ATOMIC:
            require(_is_between(result, *allowed), f"{opening}, lost at {name!r}: {result} is not within {allowed}")
        else:
            require(result in allowed, f"{opening}, lost at {name!r}: {result} is none of {allowed}")
        broker.send("Z", b"z")
        broker.acknowledge()
        require("Z" in broker.state().topics and broker.state().bodies["Z"] == {b"z"}, "it goes on")
        broker.remover.remove("Z")
        require(broker.state() == result, f"{opening}: a topic that came and went leaves nothing: {broker.state()}")
        if opening == "opened":
            disk = disk.after_kill()
        else:
            broker.close()
        allowed, name = [result], "the end"


def _is_between(found: State, before: State, after: State) -> bool:
    """Return whether each part of a step with several changes is either applied or not."""
    return all(
        before_part.get(key) == value or after_part.get(key) == value
        for part, before_part, after_part in zip(found, before, after, strict=True)
        for key, value in {**dict.fromkeys((*before_part, *after_part)), **part}.items()
    )


def configuration_fails_in_turn(kind: str, code: int) -> int:
    """Fail each write, fsync ... once: rejected changes are absent, acknowledged ones present. Return the number of cases."""
    number = 0
    while True:
        number += 1
        disk = FakeDisk()
        broker = Configured(disk)
        left = number

        def fail(what: str, path: str) -> None:
            nonlocal left
            if what == kind and "/config" in path:
                left -= 1
                if left == 0:
                    raise OSError(code, "injected", path)

        disk.fail = fail
        acknowledged = broker.state().topics
        refused: set[str] = set()
        for position in range(12):
            name = f"T{position}"
            try:
                broker.create(name)
                if position % 4 == 3:
                    asyncio.run(broker.tables.save())
                broker.acknowledge()
                acknowledged = broker.state().topics
            except (OSError, StoreError):
                refused.add(name)
        if left > 0:
            return number - 1
        disk.fail = lambda what, path: None
        result = Configured(disk.after_power_loss(SurvivingData.NONE, random.Random(0))).state().topics
        lost = acknowledged.keys() - result.keys() - refused
        require(not lost, f"{kind} number {number} failed: {lost} were acknowledged and are lost")

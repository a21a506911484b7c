"""Both implementations of `select_messages` return the same, whatever queue and log contain.

entries ─┬→ Python, a map of either implementation ──┐
         └→ ariane_native, a map of Python's or its ─┴→ the same messages, or None
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ariane.kernels.implementation import select
from ariane.kernels.pulls.pull_answers import AnsweredPull, PullQuery, PullSource
from ariane.kernels.pulls.pull_selection import (
    EXT_ADDRESS_MAX,
    FileMap,
    PullLimits,
    SelectedMessages,
    are_records,
    low_32,
    select_entries,
)
from ariane.kernels.pulls.pull_turn import found_header
from ariane.protocol.frame import JSON_FORM
from ariane.protocol.records.queue_entry import BLANK_SIZE, ENTRY, LOST_CODE
from ariane.protocol.records.record import FIXED_SIZE, IDENTITY, MAGIC, store_ms
from ariane.store.disk.files import SystemDisk

pytest.importorskip("ariane_native", reason="ariane_native is not installed; ./ariane install builds it with cargo")

PYTHON, NATIVE = select("python"), select("native")
BASE = 1 << 40
CODES = [0, 1, 2, -5, 1 << 40, 1 << 40 | 1, EXT_ADDRESS_MAX, EXT_ADDRESS_MAX + 1, LOST_CODE]
LOG_SIZE = 2_000_000

Entry = tuple[int, int, int]


class CopiedFile:
    """A map of Python's. [FileMap]"""

    def __init__(self, data: bytes, end: int = LOG_SIZE) -> None:
        self.data = data
        self.end = end  # of what can be loaded
        self.loads: list[tuple[int, int]] = []

    def load(self, start: int, stop: int) -> bool:
        assert 0 <= start < stop <= len(self.data)
        self.loads.append((start, stop))
        return stop <= self.end

    def __getitem__(self, part: slice) -> bytes:
        start, stop = self.loads[-1]
        assert start <= part.start < part.stop <= stop
        return self.data[part]

    def close(self) -> None:
        pass


class Log:
    """A file of records, some of them corrupt, and its maps."""

    def __init__(self, path: Path) -> None:
        rng = random.Random(13)
        data, self.entries = bytearray(), list[Entry]()
        while len(data) < LOG_SIZE - 50_000:
            size, offset = rng.choice([91, 150, 230, 1100, rng.randint(91, 40_000)]), BASE + len(data)
            data += IDENTITY.pack(size, MAGIC, offset) + rng.randbytes(size - IDENTITY.size)
            if rng.random() < 0.02:
                data[offset - BASE + rng.randrange(IDENTITY.size)] ^= 1 << rng.randrange(8)
            self.entries.append((offset, size, rng.choice([0, 1, 1, 1, 2, 2])))
        self.data = bytes(data) + bytes(LOG_SIZE - len(data))
        path.write_bytes(self.data)
        disk = SystemDisk()
        handle = disk.open(str(path))
        compiled = NATIVE.map_file(handle, LOG_SIZE, 1 << 20)
        disk.close(handle)
        assert compiled is not None
        self.compiled = compiled


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    log = Log(tmp_path_factory.mktemp("log") / "file")
    if not log.compiled.load(0, 1):
        pytest.skip("no MADV_POPULATE_READ here")
    yield log
    log.compiled.close()


def select_with_all(
    log: Log, entries: bytes, codes: frozenset[int] | None, limits: PullLimits
) -> SelectedMessages | None:
    """Return what all combinations of implementation and map return."""
    python_loads, native_loads = CopiedFile(log.data), CopiedFile(log.data)
    expected = PYTHON.select_messages(entries, python_loads, BASE, LOG_SIZE, codes, limits)
    assert NATIVE.select_messages(entries, native_loads, BASE, LOG_SIZE, codes, limits) == expected
    assert native_loads.loads == python_loads.loads
    messages = NATIVE.select_messages(entries, log.compiled, BASE, LOG_SIZE, codes, limits)
    if expected is None and messages is not None:
        # Native code reads records that are far from each other, too; for Python `queue_reader` does that.
        selection = select_entries(entries, codes, limits)
        records = [log.data[at - BASE : at - BASE + size] for at, size in zip(*selection[:2], strict=True)]
        assert are_records(records, selection.offsets, selection.sizes)
        expected = SelectedMessages(b"".join(records), *selection[1:])
        assert messages == expected
        return expected
    assert messages == expected
    assert PYTHON.select_messages(entries, log.compiled, BASE, LOG_SIZE, codes, limits) == expected
    return expected


wanted = st.none() | st.frozensets(st.sampled_from([*CODES, 1 << 70, -(1 << 70)]) | st.integers(-3, 3), max_size=6)
limits = st.builds(
    PullLimits,
    log_start=st.sampled_from([0, BASE, BASE + 70_000, BASE + (1 << 50)]),
    recent_from=st.sampled_from([-1, BASE, BASE + 500_000, BASE + (1 << 50)]),
    count_max=st.integers(-1, 70),
    bytes_max=st.sampled_from([-1, 0, 1000, 65_536, 262_144, 1 << 40]),
    disk_count_max=st.integers(-1, 20),
    disk_bytes_max=st.sampled_from([0, 1000, 65_536]),
)
numbers = st.integers(-(2**63), 2**63 - 1)
damaged_entries = st.tuples(
    st.integers(BASE - 500, BASE + LOG_SIZE + 500) | numbers,
    st.sampled_from([0, -1, 50, FIXED_SIZE - 1, FIXED_SIZE, 300, 1 << 30, BLANK_SIZE, -(2**31)]),
    st.sampled_from(CODES) | numbers,
)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_pulls_are_the_same(log: Log, data: st.DataObject) -> None:
    first, step = data.draw(st.integers(0, len(log.entries) - 1)), data.draw(st.sampled_from([1, 1, 4, 16]))
    entries = log.entries[first::step][: data.draw(st.integers(1, 300))]
    for number in data.draw(st.lists(st.integers(0, len(entries) - 1), max_size=3)):
        entries[number] = data.draw(damaged_entries)
    select_with_all(log, b"".join(ENTRY.pack(*entry) for entry in entries), data.draw(wanted), data.draw(limits))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(damaged_entries, min_size=1, max_size=5), wanted, limits)
def test_damaged_queues_are_the_same(
    log: Log, entries: list[Entry], codes: frozenset[int] | None, limits: PullLimits
) -> None:
    select_with_all(log, b"".join(ENTRY.pack(*entry) for entry in entries), codes, limits)


def test_the_pulls_of_a_log_return_all_that_can_be_read(log: Log) -> None:
    """The random pulls above would also agree if all of them were None."""
    usual = PullLimits(0, 0, 32, 262_144, 8, 65_536)
    messages = whole = 0
    for codes in (None, frozenset({1}), frozenset({1, 2})):
        for first in range(0, len(log.entries), 32):
            entries = log.entries[first : first + 32]
            selected = select_with_all(log, b"".join(ENTRY.pack(*entry) for entry in entries), codes, usual)
            if selected is None:
                continue
            whole += 1
            chosen = [entry for entry in entries[: selected.scanned] if codes is None or low_32(entry[2]) in codes]
            assert selected.body == b"".join(log.data[at - BASE : at - BASE + size] for at, size, _ in chosen)
            messages += len(selected.sizes)
    assert messages > 5 * whole > 0


def test_records_far_from_each_other_are_read_by_native_code(log: Log) -> None:
    far = [log.entries[0], log.entries[-1]]
    usual = PullLimits(0, 0, 32, 262_144, 8, 65_536)
    entries = b"".join(ENTRY.pack(*entry) for entry in far)
    assert PYTHON.select_messages(entries, CopiedFile(log.data), BASE, LOG_SIZE, None, usual) is None
    selected = select_with_all(log, entries, None, usual)
    assert selected is not None
    assert selected.body == b"".join(log.data[at - BASE : at - BASE + size] for at, size, _ in far)


def test_entries_that_are_not_whole_are_left_to_python(log: Log) -> None:
    entries = b"".join(ENTRY.pack(*entry) for entry in log.entries[:3])
    usual = PullLimits(0, 0, 32, 262_144, 8, 65_536)
    assert NATIVE.select_messages(entries[:-1], log.compiled, BASE, LOG_SIZE, None, usual) is None


@pytest.mark.parametrize("size", [LOG_SIZE, 100])
def test_a_map_that_does_not_load_is_none(log: Log, size: int) -> None:
    class Unloadable(CopiedFile):
        def load(self, start: int, stop: int) -> bool:
            return False

    entries = ENTRY.pack(*log.entries[0])
    usual = PullLimits(0, 0, 32, 262_144, 8, 65_536)
    for core in (PYTHON, NATIVE):
        assert core.select_messages(entries, Unloadable(log.data), BASE, size, None, usual) is None


def test_an_error_of_the_map_is_that_of_the_pull(log: Log) -> None:
    class Failing(CopiedFile):
        def load(self, start: int, stop: int) -> bool:
            raise ValueError("closed")

    failing: FileMap = Failing(log.data)
    usual = PullLimits(0, 0, 32, 262_144, 8, 65_536)
    for core in (PYTHON, NATIVE):
        with pytest.raises(ValueError, match="closed"):
            core.select_messages(ENTRY.pack(*log.entries[0]), failing, BASE, LOG_SIZE, None, usual)


# --- the pulls of a turn ---


def answers_of_select(
    log: Log, queries: list[PullQuery], source: PullSource, *, reads_far: bool
) -> tuple[bytes, list[AnsweredPull]]:
    """Return the responses that single pulls have, up to the first that `select_messages` leaves to the caller."""
    responses, answers = b"", list[AnsweredPull]()
    core, log_map = (NATIVE, log.compiled) if reads_far else (PYTHON, CopiedFile(log.data))
    for entries, count_max, codes, number, low, high, brokers, opaque in queries:
        limits = PullLimits(*source[2:4], min(count_max, source.count_max), *source[5:8])
        selected = core.select_messages(entries, log_map, BASE, LOG_SIZE, codes, limits)
        if selected is None or not selected.sizes:
            break
        body, last = selected.body, selected.last
        numbers = (high, low, number + selected.scanned, brokers[last < source.recent_from], opaque)
        responses += found_header(numbers, JSON_FORM, len(body)) + body
        answers.append((len(selected.sizes), len(body), last, store_ms(body, len(body) - selected.sizes[-1])))
        if sum(answer[1] for answer in answers) >= source.turn_bytes:
            break
    return responses, answers


def answer_with_all(log: Log, queries: list[PullQuery], source: PullSource) -> int:
    """Return how many pulls are answered, the same by each implementation and map as by single pulls."""
    expected = answers_of_select(log, queries, source, reads_far=False)
    python_loads, native_loads = CopiedFile(log.data), CopiedFile(log.data)
    assert PYTHON.answer_pulls(queries, python_loads, source) == expected
    assert NATIVE.answer_pulls(queries, native_loads, source) == expected
    assert native_loads.loads == python_loads.loads
    assert PYTHON.answer_pulls(queries, log.compiled, source) == expected
    far = answers_of_select(log, queries, source, reads_far=True)
    assert NATIVE.answer_pulls(queries, log.compiled, source) == far
    return len(far[1])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_pulls_of_a_turn_are_the_same(log: Log, data: st.DataObject) -> None:
    near = data.draw(st.integers(0, len(log.entries) - 1))
    queries: list[PullQuery] = []
    for number in range(data.draw(st.integers(1, 8))):
        first = near + number if data.draw(st.booleans()) else data.draw(st.integers(0, len(log.entries) - 1))
        entries = log.entries[first :: data.draw(st.sampled_from([1, 4, 16]))][: data.draw(st.integers(1, 40))]
        if entries and data.draw(st.integers(0, 9)) == 0:
            entries[data.draw(st.integers(0, len(entries) - 1))] = data.draw(damaged_entries)
        if entries:
            packed = b"".join(ENTRY.pack(*entry) for entry in entries)
            count_max, codes = data.draw(st.sampled_from([32, 32, 5, -1])), data.draw(wanted)
            queries.append((packed, count_max, codes, number * 7, number, number + 90, (0, 2**40), 2**31 - 1 - number))
    chosen = data.draw(limits)
    turn_bytes = data.draw(st.sampled_from([1, 20_000, 262_144, 1 << 30]))
    source = PullSource(
        BASE, LOG_SIZE, chosen.log_start, chosen.recent_from, max(1, chosen.count_max), *chosen[3:], turn_bytes
    )
    answer_with_all(log, queries, source)


USUAL_SOURCE = PullSource(BASE, LOG_SIZE, BASE, BASE, 32, 262_144, 8, 65_536, 262_144)


def query_of(entries: list[Entry]) -> PullQuery:
    return b"".join(ENTRY.pack(*entry) for entry in entries), 32, None, 5, 1, 100, (0, 1), 7


def test_most_turns_of_a_log_are_answered(log: Log) -> None:
    """The random turns above would also agree if none of them had an answer."""
    queries = [query_of(log.entries[first : first + 3]) for first in range(0, len(log.entries), 3)]
    answered = [answer_with_all(log, queries[first : first + 4], USUAL_SOURCE) for first in range(0, len(queries), 4)]
    assert sum(answered) > len(queries) / 2
    assert answered.count(4) > len(answered) / 4


def test_a_turn_whose_records_cannot_be_loaded_together_is_loaded_one_by_one(log: Log) -> None:
    queries = [query_of([entry]) for entry in log.entries[:6]]
    end = sum(log.entries[2][:2]) - BASE
    for core in (PYTHON, NATIVE):
        _, answers = core.answer_pulls(queries, CopiedFile(log.data, end), USUAL_SOURCE)
        assert len(answers) == 3


def test_an_error_of_the_map_is_that_of_the_turn(log: Log) -> None:
    class Failing(CopiedFile):
        def load(self, start: int, stop: int) -> bool:
            raise OSError(5, "Input/output error")

    for core in (PYTHON, NATIVE):
        with pytest.raises(OSError, match="Input/output error"):
            core.answer_pulls([query_of(log.entries[:1])], Failing(log.data), USUAL_SOURCE)


def test_a_closed_map_is_refused(log: Log, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(log.data)
    disk = SystemDisk()
    handle = disk.open(str(tmp_path / "file"))
    compiled = NATIVE.map_file(handle, LOG_SIZE, 1 << 20)
    disk.close(handle)
    assert compiled is not None
    compiled.close()
    with pytest.raises(ValueError, match="closed"):
        NATIVE.answer_pulls([query_of(log.entries[:1])], compiled, USUAL_SOURCE)

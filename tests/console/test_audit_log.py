"""The audit log: durable lines, rotation, search, floods of requests without log-in."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from ariane.cluster.connection import Change
from ariane.console.security.audit_log import REFUSED_PER_MINUTE_MAX, AuditEntry, AuditLog, AuditQuery
from ariane.console.security.audit_notes import begin_notes, note, watch_changes
from ariane.protocol.codes import RequestCode
from ariane.testing.clock import FakeClock


def entry(time_ms: int, account: str = "ann", **fields: str) -> AuditEntry:
    values = {"address": "10.0.0.1", "method": "POST", "path": "/topics/orders", "outcome": "done", **fields}
    return AuditEntry(time_ms, account, status=200, **values)


def times(log: AuditLog, query: AuditQuery = AuditQuery()) -> list[int]:  # noqa: B008 - immutable
    return [entry.time_ms for entry in log.read(query)]


def test_entries_are_lines_of_a_private_file(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.record(entry(1, target="orders"))
    log.record(entry(2))
    lines = log.path.read_text().splitlines()
    assert json.loads(lines[0]) == {
        "timeMs": 1, "account": "ann", "address": "10.0.0.1", "method": "POST", "path": "/topics/orders",
        "outcome": "done", "status": 200, "target": "orders",
    }  # fmt: skip
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    assert times(AuditLog(tmp_path)) == [2, 1]


def test_search_and_time_range(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    for number in range(10):
        log.record(entry(number, account="ann" if number % 2 else "bob", detail=f"delete topic Orders-{number}"))
    assert times(log, AuditQuery(text="ANN")) == [9, 7, 5, 3, 1]
    assert times(log, AuditQuery(text="orders-4")) == [4]
    assert times(log, AuditQuery(text="ann orders-4")) == []
    assert times(log, AuditQuery(since_ms=3, until_ms=6)) == [5, 4, 3]
    entries, total = log.page(AuditQuery(text="bob"), offset=1, size=2)
    assert ([entry.time_ms for entry in entries], total) == ([6, 4], 5)


def test_rotation_keeps_the_newest_files(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, file_bytes_max=1_000, files_max=3)
    for number in range(100):
        log.record(entry(number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.1.jsonl", "audit.2.jsonl", "audit.jsonl"]
    kept = times(log)
    assert kept == list(range(99, 99 - len(kept), -1)), "the newest entries, without a gap"
    assert len(kept) >= 2 * (1_000 // 130)


def test_a_torn_line_damages_no_other(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.record(entry(1))
    with log.path.open("ab") as file:
        file.write(b'{"timeMs": 2, "acc')
    log.record(entry(3))
    assert times(log) == [3, 1]


def test_long_fields_are_cut(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.record(entry(1, detail="x" * 100_000, path="/" + "y" * 100_000))
    assert log.path.stat().st_size < 3_000


def test_long_methods_and_addresses_are_cut(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.record(entry(1, method="X" * 60_000, address="y" * 60_000))
    assert log.path.stat().st_size < 300


def test_lone_surrogates_do_not_prevent_an_entry(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.record(entry(1, detail="group \ud800"))
    assert next(log.read(AuditQuery())).detail == "group ?"


def test_requests_without_log_in_cannot_flood_the_log(tmp_path: Path) -> None:
    clock = FakeClock()
    log = AuditLog(tmp_path, clock=clock)
    for number in range(REFUSED_PER_MINUTE_MAX + 40):
        log.record(entry(number, account=""))
    assert len(times(log)) == REFUSED_PER_MINUTE_MAX
    log.record(entry(1_000))
    assert next(log.read(AuditQuery())).detail == "40 requests without log-in were not recorded"
    clock.advance(60)
    log.record(entry(1_001, account=""))
    assert times(log)[:2] == [1_001, 1_000]


def test_refused_requests_of_an_account_cannot_flood_the_log(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, clock=FakeClock())
    for number in range(REFUSED_PER_MINUTE_MAX + 1):
        log.record(entry(number, account="eve", outcome="refused"))
    log.record(entry(500, account="ann", outcome="refused", detail="no"))
    assert times(log, AuditQuery(text="eve refused /topics")) == [500, *range(REFUSED_PER_MINUTE_MAX - 1, -1, -1)]
    assert next(log.read(AuditQuery())).detail == "1 refused request of eve was not recorded; no"


def test_refused_requests_never_displace_changes(tmp_path: Path) -> None:
    clock = FakeClock()
    log = AuditLog(tmp_path, clock=clock, file_bytes_max=1_000, files_max=2)
    log.record(entry(0))
    for number in range(1, 200):
        clock.advance(60)
        log.record(entry(number, account=number % 2 * "eve", outcome="refused"))
    log.record(entry(200))
    kept = times(log)
    assert len(kept) < 30 and kept[:2] == [200, 199] and kept[-1] == 0, "in order, and the change is still there"


def test_a_disk_that_fails_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    with pytest.raises(OSError):
        AuditLog(tmp_path).record(entry(1))


def test_notes_collect_the_changes_of_a_request() -> None:
    notes = begin_notes()
    changes: list[Change] = []
    watch_changes(changes)
    note("resent 3 messages")
    changes += [
        Change(f"10.0.0.{number}:10911", "delete topic orders", RequestCode.DELETE_TOPIC_IN_BROKER)
        for number in range(22)
    ]
    text = notes.text()
    assert text.startswith("resent 3 messages; delete topic orders on 10.0.0.0:10911; ")
    assert text.endswith("; 2 more changes")

"""The audit log: who changed what, from where, when and with which result. Append-only JSON lines in the data directory.

    audit.jsonl             the newest entries of accounts; fsync after each
    audit.1.jsonl …         older files, up to FILES_MAX
    audit_refused.jsonl …   refused requests and those without a log-in, rotated by themselves: a flood of these cannot
                            rotate entries of changes away

Passwords, secret keys and message bodies are never written: an entry contains the request's path, the names in it, notes
about the result, and the summaries of the changes that `Admin` executed.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from ariane.audit import record_lines
from ariane.audit.line_files import LineFiles
from ariane.audit.record_files import CHANGES_FILE, FILE_BYTES_MAX, FILES_MAX, audit_files
from ariane.clock import SYSTEM_CLOCK, Clock

# Most characters of fields. The HTTP parser accepts methods of any length.
LIMITS = {"account": 64, "address": 64, "method": 16, "path": 500, "target": 500, "detail": 2_000}

# Refused requests of one account, and all requests without a log-in: more in a minute are only counted.
REFUSED_PER_MINUTE_MAX = 60


class AuditEntry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A request that changed something, or tried to.

    Attributes:
        time_ms: End of the request.
        account: Account that sent it; empty without a log-in.
        address: Address that it came from.
        method: HTTP method.
        path: Path of the URL, without its query.
        outcome: "done", "dry run", "refused" (not permitted) or "failed".
        status: HTTP status.
        role: ConsoleRole of the account.
        target: Names in the path, for example a topic.
        detail: What was changed on which server, or why it failed.
    """

    time_ms: int
    account: str
    address: str
    method: str
    path: str
    outcome: str
    status: int
    role: str = ""
    target: str = ""
    detail: str = ""


class AuditQuery(msgspec.Struct, frozen=True):
    """Which entries to return: those that contain `text` in any field, from `since_ms` to before `until_ms`."""

    text: str = ""
    since_ms: int | None = None
    until_ms: int | None = None


class DescribedChange(Protocol):
    """A change of a server, described for people [`ariane.cluster.connection.Change`]."""

    @property
    def addr(self) -> str: ...
    @property
    def summary(self) -> str: ...


class AuditLog:
    """Appends entries, durably, and reads them.

    Args:
        clock: Time that limits entries of refused requests.
        file_bytes_max: Size from which a new file is started.
        files_max: Files of each kind that are retained, including the one that is written.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        clock: Clock = SYSTEM_CLOCK,
        file_bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
    ) -> None:
        self.path = data_dir / CHANGES_FILE  # the newest entries of changes
        # Those and the ones before; requests that were refused or had no log-in by themselves.
        self._changes, self._refused = audit_files(data_dir, file_bytes_max, files_max)
        self._clock = clock
        self._lock = threading.Lock()  # entries are written in threads: an fsync must not stop the event loop
        self._window_start_s = clock.monotonic()  # start of the minute of `_refused_counts`
        self._refused_counts: Counter[str] = Counter()  # refused requests of this minute by account; "": without log-in
        self._suppressed: Counter[str] = Counter()  # of them, those that were not written and not yet reported

    def record(self, entry: AuditEntry) -> None:
        """Append an entry and flush it to the disk. Blocks: call it in a thread.

        Raises:
            OSError: the disk failed or is full.
        """
        with self._lock:
            is_refused = not entry.account or entry.outcome == "refused"
            if is_refused and self._is_flood(entry.account):
                return
            if self._suppressed:
                notes = [_suppressed_text(account, count) for account, count in self._suppressed.items()]
                # Before the detail, which may be cut.
                entry = msgspec.structs.replace(entry, detail="; ".join(filter(None, (*notes, entry.detail))))
            files = self._refused if is_refused else self._changes
            files.append(record_lines.encode(record_lines.bounded(entry, LIMITS)))
            self._suppressed.clear()

    def read(self, query: AuditQuery) -> Iterator[AuditEntry]:
        """Yield the matching entries, the newest first. Blocks: call it in a thread."""
        words = query.text.casefold().split()
        files = (_entries(self._changes), _entries(self._refused))
        for entry in heapq.merge(*files, key=lambda entry: entry.time_ms, reverse=True):
            if _matches(entry, query, words):
                yield entry

    def page(self, query: AuditQuery, *, offset: int, size: int) -> tuple[list[AuditEntry], int]:
        """Return a page of the matching entries and their total number. Blocks: call it in a thread."""
        entries, total = [], 0
        for entry in self.read(query):
            if offset <= total < offset + size:
                entries.append(entry)
            total += 1
        return entries, total

    def _is_flood(self, account: str) -> bool:
        now_s = self._clock.monotonic()
        if now_s - self._window_start_s >= 60:
            self._window_start_s = now_s
            self._refused_counts.clear()
        self._refused_counts[account] += 1
        is_flood = self._refused_counts[account] > REFUSED_PER_MINUTE_MAX
        if is_flood:
            self._suppressed[account] += 1
        return is_flood


def _entries(files: LineFiles) -> Iterator[AuditEntry]:
    """Yield all entries, the newest first."""
    for line in files.read():
        if (entry := record_lines.decode(line, AuditEntry)) is not None:
            yield entry


def _matches(entry: AuditEntry, query: AuditQuery, words: list[str]) -> bool:
    if query.since_ms is not None and entry.time_ms < query.since_ms:
        return False
    if query.until_ms is not None and entry.time_ms >= query.until_ms:
        return False
    if not words:
        return True
    fields = (entry.account, entry.address, entry.method, entry.path, entry.outcome, entry.target, entry.detail)
    text = " ".join(fields).casefold()
    return all(word in text for word in words)


def _suppressed_text(account: str, count: int) -> str:
    requests = "request" if count == 1 else "requests"
    kind = f"{count} refused {requests} of {account}" if account else f"{count} {requests} without log-in"
    return f"{kind} {'was' if count == 1 else 'were'} not recorded"

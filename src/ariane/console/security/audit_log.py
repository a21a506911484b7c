"""The audit log: who changed what, from where, when and with which result. Append-only JSON lines in the data directory.

    audit.jsonl      the newest entries; fsync after each
    audit.1.jsonl …  older files, up to FILES_MAX

Passwords, secret keys and message bodies are never written: an entry contains the request's path, the names in it, and the
summaries of the changes that `Admin` executed, but no form field.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.console.security.private_files import PRIVATE_MODE, create_private_directory, sync_directory

FILE_BYTES_MAX = 8 * 1024 * 1024  # about 25,000 entries
FILES_MAX = 10
DETAIL_CHARACTERS_MAX = 2_000
TARGET_CHARACTERS_MAX = 500

# Requests without a log-in could fill the log until entries of changes are rotated away.
ANONYMOUS_PER_MINUTE_MAX = 60


class AuditEntry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A request that changed something, or tried to.

    Attributes:
        time_ms: End of the request.
        account: Account that sent it; empty without a log-in.
        address: Address that it came from.
        method: HTTP method.
        path: Path of the URL, without its query.
        outcome: "done", "refused" (not permitted) or "failed".
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
        data_dir: Directory of the console's files.
        clock: Time that limits entries of requests without a log-in.
        file_bytes_max: Size from which a new file is started.
        files_max: Files that are retained, including the one that is written.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        clock: Clock = SYSTEM_CLOCK,
        file_bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
    ) -> None:
        self.path = data_dir / "audit.jsonl"  # the file that is written
        self._clock = clock
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._lock = threading.Lock()  # entries are written in threads: an fsync must not stop the event loop
        self._window_start_s = clock.monotonic()  # start of the minute of `_anonymous_count`
        self._anonymous_count = 0  # entries without a log-in within this minute
        self._suppressed_count = 0  # of them, those that were not written

    def record(self, entry: AuditEntry) -> None:
        """Append an entry and flush it to the disk. Blocks: call it in a thread.

        Raises:
            OSError: the disk failed or is full.
        """
        with self._lock:
            if not entry.account and self._is_flood():
                return
            if self._suppressed_count and entry.account:
                note = f"{entry.detail}; {self._suppressed_count} requests without log-in were not recorded".lstrip(
                    "; "
                )
                entry = msgspec.structs.replace(entry, detail=note)
                self._suppressed_count = 0
            self._append(_bounded(entry))

    def read(self, query: AuditQuery) -> Iterator[AuditEntry]:
        """Yield the matching entries, the newest first. Blocks: call it in a thread."""
        words = query.text.casefold().split()
        for path in self._files():
            for line in reversed(_lines(path)):
                entry = _decode(line)
                if entry is not None and _matches(entry, query, words):
                    yield entry

    def page(self, query: AuditQuery, *, offset: int, size: int) -> tuple[list[AuditEntry], int]:
        """Return a page of the matching entries and their total number. Blocks: call it in a thread."""
        entries, total = [], 0
        for entry in self.read(query):
            if offset <= total < offset + size:
                entries.append(entry)
            total += 1
        return entries, total

    def _files(self) -> list[Path]:
        """Return the existing files, the newest first."""
        return [path for path in (self.path, *map(self._rotated, range(1, self._files_max))) if path.exists()]

    def _rotated(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.stem}.{number}{self.path.suffix}")

    def _append(self, entry: AuditEntry) -> None:
        create_private_directory(self.path.parent)
        line = msgspec.json.encode(entry) + b"\n"
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE)
        with os.fdopen(handle, "rb+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                line = b"\n" + line  # a crash tore the last line: it must not damage this one, too
            file.write(line)
            os.fsync(file.fileno())
        if size == 0:
            sync_directory(self.path.parent)
        if size + len(line) >= self._file_bytes_max:
            self._rotate()

    def _rotate(self) -> None:
        # From the oldest on: a crash between two steps leaves a gap in the numbers, and no file is lost.
        for number in range(self._files_max - 1, 0, -1):
            source = self._rotated(number - 1) if number > 1 else self.path
            if source.exists():
                source.replace(self._rotated(number))
        sync_directory(self.path.parent)

    def _is_flood(self) -> bool:
        now_s = self._clock.monotonic()
        if now_s - self._window_start_s >= 60:
            self._window_start_s, self._anonymous_count = now_s, 0
        self._anonymous_count += 1
        is_flood = self._anonymous_count > ANONYMOUS_PER_MINUTE_MAX
        self._suppressed_count += is_flood
        return is_flood


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except FileNotFoundError:
        return []  # rotated away since the files were listed


def _decode(line: bytes) -> AuditEntry | None:
    """Return the entry of a line; None for a line that a crash tore."""
    try:
        return msgspec.json.decode(line, type=AuditEntry)
    except msgspec.DecodeError:
        return None


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


def _bounded(entry: AuditEntry) -> AuditEntry:
    return msgspec.structs.replace(
        entry,
        account=entry.account[:64],
        path=entry.path[:TARGET_CHARACTERS_MAX],
        target=entry.target[:TARGET_CHARACTERS_MAX],
        detail=entry.detail[:DETAIL_CHARACTERS_MAX],
    )

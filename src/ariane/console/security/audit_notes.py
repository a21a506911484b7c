"""Details of the request in progress for its audit entry.

    middleware            notes = begin_notes()   …   notes.text()
    services.admin()      watch_changes(admin.changes)
    an area               note("resent 17 of 20 messages to group billing")
    dashboard endpoints   note_failure("orders: topic does not exist")

The notes belong to the request's task (a context variable), so that areas need no parameter for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

from ariane.console.security.audit_log import DescribedChange

NOTES_MAX = 100
SUMMARIES_MAX = 20  # changes that an entry lists; the others are counted


class AuditNotes:
    """What a request changed, in words."""

    def __init__(self) -> None:
        self.is_dry_run = False
        self.is_failed = False  # also if the status of the answer is 200, as the dashboard's scripts expect it
        self._texts: list[str] = []
        self._changes: list[Sequence[DescribedChange]] = []

    def add(self, text: str) -> None:
        """Add a sentence. It must not contain passwords, secret keys or message bodies."""
        if len(self._texts) < NOTES_MAX:
            self._texts.append(text)

    def watch(self, changes: Sequence[DescribedChange], *, is_dry_run: bool) -> None:
        """Add the changes of an `Admin`, as they are at the end of the request."""
        self.is_dry_run = self.is_dry_run or is_dry_run
        if len(self._changes) < NOTES_MAX:
            self._changes.append(changes)

    def text(self) -> str:
        """Return all notes and changes."""
        summaries = [f"{change.summary} on {change.addr}" for changes in self._changes for change in changes]
        omitted = len(summaries) - SUMMARIES_MAX
        more = [f"{omitted} more {'change' if omitted == 1 else 'changes'}"] if omitted > 0 else []
        return "; ".join([*self._texts, *summaries[:SUMMARIES_MAX], *more])


_NOTES: ContextVar[AuditNotes | None] = ContextVar("audit_notes", default=None)


def begin_notes() -> AuditNotes:
    """Start the notes of the request that this task handles."""
    notes = AuditNotes()
    _NOTES.set(notes)
    return notes


def note(text: str) -> None:
    """Add a detail to the audit entry of the request in progress; without effect outside of requests."""
    if (notes := _NOTES.get()) is not None:
        notes.add(text)


def note_failure(text: str) -> None:
    """Add a detail like `note`, and mark the request as failed although its answer may have a status of success."""
    if (notes := _NOTES.get()) is not None:
        notes.is_failed = True
        notes.add(text)


def watch_changes(changes: Sequence[DescribedChange], *, is_dry_run: bool = False) -> None:
    """Add the changes of an `Admin` to the audit entry of the request in progress."""
    if (notes := _NOTES.get()) is not None:
        notes.watch(changes, is_dry_run=is_dry_run)

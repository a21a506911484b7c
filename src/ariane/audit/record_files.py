"""The files of a server's audit log: changes, and refusals by themselves. Blocks: for threads and commands.

audit.jsonl, audit.1.jsonl …                   changes
audit_refused.jsonl, audit_refused.1.jsonl …   refused requests, and failed ones without a proven account
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path

from ariane.audit.line_files import LineFiles
from ariane.audit.record_lines import decode
from ariane.audit.records import number_of
from ariane.protocol.requests.audit import AuditPage, AuditRecord, GetAuditLog

CHANGES_FILE, REFUSED_FILE = "audit.jsonl", "audit_refused.jsonl"
FILE_BYTES_MAX = 8 * 1024 * 1024  # some 25,000 records
FILES_MAX = 10

PAGE_MAX = 1_000  # records of a page
SCANNED_MAX = 20_000  # records that are compared for a page: some 50 ms


def audit_files(
    directory: Path, file_bytes_max: int = FILE_BYTES_MAX, files_max: int = FILES_MAX
) -> tuple[LineFiles, LineFiles]:
    """Return the files of changes and of refusals."""
    return (
        LineFiles(directory / CHANGES_FILE, file_bytes_max, files_max),
        LineFiles(directory / REFUSED_FILE, file_bytes_max, files_max),
    )


def last_number(files: Sequence[LineFiles]) -> int:
    """Return the number of the newest record; 0 without one."""
    return max(next((number for line in lines.read() if (number := number_of(line))), 0) for lines in files)


def read_page(files: Sequence[LineFiles], selection: GetAuditLog) -> AuditPage:
    """Return the newest records that are selected, in one page, which ends early if few of many records are."""
    size = min(max(selection.size, 1), PAGE_MAX)
    selected: list[AuditRecord] = []
    number = 0
    lines = heapq.merge(*(_lines(part, selection) for part in files), key=number_of, reverse=True)
    for scanned, line in enumerate(lines):
        if len(selected) == size or scanned == SCANNED_MAX:
            return AuditPage(tuple(selected), before=number)
        number = number_of(line)
        record = decode(line, AuditRecord)
        if record is not None and selection.matches(record):
            selected.append(record)
    return AuditPage(tuple(selected))


def _lines(files: LineFiles, selection: GetAuditLog) -> Iterator[bytes]:
    """Yield the lines with numbers between `after` and `before`, the newest first."""
    for lines in files.contents():
        oldest = next((number for line in lines if (number := number_of(line))), 0)
        if selection.before and oldest >= selection.before:
            continue
        for line in reversed(lines):
            number = number_of(line)
            if number and number <= selection.after:
                return
            if number and (not selection.before or number < selection.before):
                yield line

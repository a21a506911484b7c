"""Journals of resent dead letters: one file per group in the console's directory, so that no dead letter is resent by mistake.

DATA_DIR/resent/<group>.jsonl     `ariane.reports.replay.replay_result.ResultFile`: the last outcome of each dead letter;
                                  of a group with more than 200 characters sha256.<hash of its name>.jsonl
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from ariane.cluster.messages.replay import RecordId, ReplayJournal, ReplayOutcome
from ariane.errors import ConfigError, ServerUnavailable, StoreError
from ariane.reports.replay.replay_result import ResultFile, ResultInUse

DIRECTORY = "resent"
NAME_CHARS_MAX = 200  # file names have at most 255 bytes, with the endings of the journal
DIRECTORY_MODE = 0o700  # message ids and error texts are for operators only


class RepeatingJournal:
    """A journal that records outcomes and skips nothing: each message is sent again, under a new unique key."""

    def __init__(self, journal: ReplayJournal) -> None:
        self._journal = journal

    def is_sent(self, place: RecordId) -> bool:
        """Return False: earlier outcomes do not count."""
        return False

    def message_id_of(self, place: RecordId) -> str | None:
        """Return None: the copy is a new message."""
        return None

    def write(self, outcomes: list[ReplayOutcome]) -> None:
        """Store outcomes durably."""
        self._journal.write(outcomes)


def journal_path(data_dir: Path, group: str) -> Path:
    """Return the journal of a group, whose name was validated: it has neither dots nor slashes."""
    name = group
    if len(name) > NAME_CHARS_MAX:
        name = f"sha256.{hashlib.sha256(group.encode()).hexdigest()}"
    return data_dir / DIRECTORY / f"{name}.jsonl"


def read_outcomes(data_dir: Path, group: str) -> dict[RecordId, ReplayOutcome]:
    """Return the last outcome of each dead letter that was resent from this console. Blocks: call it in a thread.

    Raises:
        StoreError: the journal is corrupt.
    """
    path = journal_path(data_dir, group)
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    try:
        outcomes = [msgspec.json.decode(line, type=ReplayOutcome) for line in lines if line]
    except msgspec.DecodeError as error:
        raise StoreError(f"{path} is not a valid journal: {error}; move it away to resend without it") from error
    return {outcome.record_id: outcome for outcome in outcomes}


@asynccontextmanager
async def open_journal(data_dir: Path, group: str) -> AsyncIterator[ResultFile]:
    """Open the journal of a group for a resend.

    Raises:
        ServerUnavailable: another resend of the group is running.
    """
    path = journal_path(data_dir, group)
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    journal = ResultFile(path)
    # Opening and closing read and write whole files.
    try:
        await asyncio.to_thread(journal.__enter__)
    except ResultInUse as error:
        reason = "another resend of this group is running; repeat it when that one has ended"
        raise ServerUnavailable(f"cannot resend dead letters of {group}: {reason}") from error
    except ConfigError as error:
        raise ServerUnavailable(f"cannot resend dead letters of {group}: {path}: {error.fix}") from error
    try:
        yield journal
    finally:
        await asyncio.to_thread(journal.__exit__, None, None, None)

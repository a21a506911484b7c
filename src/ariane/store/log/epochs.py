"""The epochs of a log: which leader wrote which part of it. Java ignores the file.

    epoch    5          7               each ends where the next one begins
    log      |----------|----------►
             0          81920

    root/ariane/epochs   JSON: {"promised": 8, "epochs": [[5, 0, "a"], [7, 81920, "b"]]}

Records that can be read, and may be missing on the disk, get an epoch that no other log has (`distrust`): they are cut off then,
and copied from a leader.

Two logs are equal up to the end of their last common epoch, in the log in which it ends first. An epoch is stored on the disk
before its first record, and `promised`, the highest epoch that this member accepted, before the member answers to it: data of a
lower epoch is refused from then on. A log that was written without failover has no epochs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated

import msgspec

from ariane.errors import StoreCorrupt, StoreError
from ariane.store.disk.files import Disk, read_whole, write_atomic, write_error

log = logging.getLogger("ariane.store.log.epochs")

_Offset = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """The part of a log that one leader wrote."""

    number: Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
    """Grows with each change of the leader."""
    start: _Offset
    """Offset of its first record."""
    holder: str
    """Member that wrote it. Distinguishes epochs of the same number if a number was ever used twice."""


class _EpochDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    promised: _Offset
    epochs: tuple[Epoch, ...]


def with_epoch(epochs: Sequence[Epoch], new: Epoch) -> tuple[Epoch, ...]:
    """Return `epochs` and a new one, which replaces those without records.

    Raises:
        StoreError: its number is not above the last one.
    """
    if epochs and new.number <= epochs[-1].number:
        raise StoreError(f"Epoch {new.number} of {new.holder!r} cannot follow epoch {epochs[-1].number}")
    # To refuse an epoch because the last one is still empty would file its records under that one, and hide a fork.
    return (*(epoch for epoch in epochs if epoch.start < new.start), new)


def trimmed(epochs: Sequence[Epoch], log_start: int) -> tuple[Epoch, ...]:
    """Return the epochs that have records from `log_start` on, and the last one in any case."""
    first = sum(epoch.start <= log_start for epoch in epochs[1:])
    return tuple(epochs[first:])


def epoch_at(epochs: Sequence[Epoch], offset: int) -> Epoch | None:
    """Return the epoch of the record at `offset`; None for a record before the first epoch."""
    return next((epoch for epoch in reversed(epochs) if epoch.start <= offset), None)


def batch_end(epochs: Sequence[Epoch], offset: int, end: int) -> int:
    """Return `end`, or the start of the next epoch after `offset` if that is before: a batch is of one epoch."""
    return min([end, *(epoch.start for epoch in epochs if epoch.start > offset)])


def common_end(own: Sequence[Epoch], own_end: int, other: Sequence[Epoch], other_end: int) -> int:
    """Return the offset up to which two logs have the same records: beyond it, at least one has to be cut or continued.

    Without a common epoch only the parts before the first epochs may be equal, which epochs cannot prove.
    """
    own_ends, other_ends = _ends(own, own_end), _ends(other, other_end)
    for epoch in reversed(own):
        if epoch in other_ends:
            return min(own_ends[epoch], other_ends[epoch])
    return min(own[0].start if own else own_end, other[0].start if other else other_end)


def _ends(epochs: Sequence[Epoch], log_end: int) -> dict[Epoch, int]:
    ends = [*(epoch.start for epoch in epochs[1:]), log_end]
    return {epoch: max(epoch.start, end) for epoch, end in zip(epochs, ends, strict=False)}


class EpochHistory:
    """The epochs of one store directory. Each change is on the disk before its method returns."""

    def __init__(self, disk: Disk, root: str, *, promised: int = 0, epochs: tuple[Epoch, ...] = ()) -> None:
        self.promised = promised  # data of a lower epoch is refused
        self.epochs = epochs  # in ascending order of numbers and starts
        self._disk = disk
        self._path = _path(root)

    @property
    def last_number(self) -> int:
        """Number of the last epoch that has an entry; 0 without entries."""
        return self.epochs[-1].number if self.epochs else 0

    def promise(self, number: int) -> None:
        """Refuse data of lower epochs from now on.

        Raises:
            StoreError: a higher epoch was promised, or the promise cannot be stored.
        """
        if number < self.promised:
            raise StoreError(f"Epoch {number} is over: this member has promised epoch {self.promised}")
        if number > self.promised:
            self._store(number, self.epochs)

    def begin(self, epoch: Epoch) -> None:
        """Begin an epoch, before its first record is appended. An epoch that has begun already stays as it is.

        Raises:
            StoreError: a higher epoch was promised or has begun, or the entry cannot be stored.
        """
        if epoch.number < self.promised:
            raise StoreError(f"Epoch {epoch.number} is over: this member has promised epoch {self.promised}")
        if epoch not in self.epochs:
            self._store(epoch.number, with_epoch(self.epochs, epoch))

    def distrust(self, offset: int, incarnation: str) -> None:
        """Note that the records from `offset` on may be missing on the disk of this incarnation of a member.

        A log without epochs is not trusted anyway.
        """
        if self.epochs:
            unproven = Epoch(self.last_number, offset, f"?{incarnation}")
            self._store(self.promised, (*(epoch for epoch in self.epochs if epoch.start < offset), unproven))

    def adopt(self, leader: Sequence[Epoch], end: int) -> None:
        """Take the epochs of the leader's log that begin before `end`, before records up to there are appended.

        The log must be a prefix of the leader's. Entries older than the leader's first one stay: it has removed those files.
        """
        epochs = tuple(epoch for epoch in leader if epoch.start < end)
        if epochs:
            epochs = *(epoch for epoch in self.epochs if epoch.start < epochs[0].start), *epochs
        if epochs != self.epochs:
            self._store(self.promised, epochs)

    def cut(self, log_end: int) -> None:
        """Remove the entries of records from `log_end` on, after they were cut off: none of them may be valid again later."""
        epochs = tuple(epoch for epoch in self.epochs if epoch.start < log_end)
        if epochs != self.epochs:
            self._store(self.promised, epochs)

    def trim(self, log_start: int) -> None:
        """Remove the entries of removed files."""
        epochs = trimmed(self.epochs, log_start)
        if epochs != self.epochs:
            self._store(self.promised, epochs)

    def _store(self, promised: int, epochs: tuple[Epoch, ...]) -> None:
        try:
            for directory in self._disk.make_dirs(self._path.rpartition("/")[0]):
                self._disk.fsync_dir(directory)
            write_atomic(self._disk, self._path, msgspec.json.encode(_EpochDocument(promised, epochs)))
        except OSError as error:
            raise write_error(error, self._path) from error
        self.promised, self.epochs = promised, epochs


def open_epochs(disk: Disk, root: str, log_end: int | None = None, *, written_by_java: bool = False) -> EpochHistory:
    """Return the epochs of a store.

    Args:
        log_end: Where its log ends; None before it is open.
        written_by_java: Whether a Java broker wrote the store last: then the epochs of its records are unknown.

    Raises:
        StoreCorrupt: the file is damaged.
        OSError: it cannot be read.
    """
    data = read_whole(disk, _path(root))
    if data is None:
        return EpochHistory(disk, root)
    try:
        document = msgspec.json.decode(data, type=_EpochDocument)
    except msgspec.DecodeError as error:
        fix = "remove it to follow a master with an empty store; this member is not eligible until then"
        raise StoreCorrupt(_path(root), 0, f"not a list of epochs ({error}): {fix}") from error
    if written_by_java and document.epochs:
        log.warning(
            "%s does not describe the log, which a Java broker has written: its entries are ignored", _path(root)
        )
        history = EpochHistory(disk, root, promised=document.promised, epochs=document.epochs)
        history.cut(0)
        return history
    history = EpochHistory(disk, root, promised=document.promised, epochs=document.epochs)
    # An epoch after the end of the log has no records here: those before it were lost with the power, or cut off.
    if log_end is not None and any(epoch.start > log_end for epoch in document.epochs):
        history.cut(log_end)
    return history


def _path(root: str) -> str:
    return f"{root}/ariane/epochs"

"""The identity of a member of a broker set: its name, and the incarnation of its data.

    root/ariane/member   JSON: {"incarnation": "9f0c…", "boot_id": "61c2…", "is_durable": true}; no boot_id after an orderly stop

The incarnation changes when acknowledged records may be missing: the machine started again, the broker had not stopped in order and
acknowledged records before they were on its disk (not `is_durable`), or the log is empty and was not at an orderly stop (`end`).
`kill -9` loses nothing that was written. A leader admits a new incarnation again before it counts.

After a failed flush, records can be read from the page cache, and the next flush reports success, although they never reached the
disk. `is_unproven` notes that until the epochs of the log say which records these are. A file system whose disk has failed may also
lack what was flushed before: `has_failed` lets the next start of a process read the whole log.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
from pathlib import Path

import msgspec

from ariane.broker.config.broker_config import BrokerConfig
from ariane.failover.leader_record import InSyncMember
from ariane.store.disk.files import Disk, read_whole, write_atomic, write_error

log = logging.getLogger("ariane.broker.replication.member_identity")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _MemberDocument(msgspec.Struct, frozen=True):
    incarnation: str
    boot_id: str
    end: int | None = None  # of the log at an orderly stop
    is_unproven: bool = False  # records after the last checkpoint may be in the page cache only
    has_failed: bool = False  # its disk, since a start read the whole log
    is_durable: bool = False  # all that it acknowledged was on the disk before: a loss of power loses none of it


def member_name(config: BrokerConfig) -> str:
    """Return `memberName`, or brokerName and brokerId with the characters of member names."""
    return config.member_name or f"{re.sub(r'[^A-Za-z0-9_.-]', '_', config.broker_name)[:100]}-{config.broker_id}"


def read_boot_id() -> str:
    """Return what identifies this run of the machine; a random text where the system has none."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return secrets.token_hex(8)


class MemberIdentity:
    """The identity of a member whose broker runs. `mark_stopped` notes an orderly stop."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        member: InSyncMember,
        *,
        is_unproven: bool = False,
        has_failed: bool = False,
        is_durable: bool = False,
    ) -> None:
        self.member = member
        self.has_failed = has_failed  # the file system may lack records below the checkpoint once it is mounted again
        self.is_unproven = is_unproven  # records after the last checkpoint may be missing on the disk
        self._is_durable = is_durable
        self._disk = disk
        self._root = root
        self._path = _path(root)

    def mark_stopped(self, log_end: int) -> None:
        """Note that everything is on the disk: the next start has the same data, also after another start of the machine."""
        document = _MemberDocument(self.member.incarnation, "", log_end, has_failed=self.has_failed)
        write_atomic(self._disk, self._path, msgspec.json.encode(document))

    def renewed(self, *, is_unproven: bool) -> MemberIdentity:
        """Return the identity with another incarnation, because acknowledged records may be missing. `store` it."""
        member = InSyncMember(self.member.name, secrets.token_hex(8))
        has_failed = is_unproven or self.has_failed
        return MemberIdentity(self._disk, self._root, member, is_unproven=is_unproven, has_failed=has_failed)

    def mark_read(self) -> None:
        """Note that this start has read the whole log.

        Raises:
            OSError: it cannot be written.
        """
        self.has_failed = False
        self.store()

    def mark_distrusted(self) -> None:
        """Note that the epochs of the log say which of its records are not proven.

        Raises:
            OSError: it cannot be written.
        """
        if self.is_unproven:
            self.is_unproven = False
            try:
                self.store()
            except OSError:
                self.is_unproven = True
                raise

    def store(self) -> None:
        """Write the identity of a broker that runs. If that fails, remove the former one: a start makes a new one then.

        Raises:
            OSError: it cannot be written.
        """
        try:
            document = _MemberDocument(
                self.member.incarnation,
                read_boot_id(),
                is_unproven=self.is_unproven,
                has_failed=self.has_failed,
                is_durable=self._is_durable,
            )
            write_atomic(self._disk, self._path, msgspec.json.encode(document))
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.remove(self._path)
                self._disk.fsync_dir(self._path.rpartition("/")[0])
            raise


def open_identity(
    disk: Disk, root: str, name: str, *, boot_id: str, log_end: int, flushes: bool = False
) -> MemberIdentity:
    """Return the identity of a member whose store ends at `log_end`. It is on the disk when this returns.

    Args:
        boot_id: Of this run of the machine.
        flushes: Whether the member acknowledges only what is on its disk (SYNC_FLUSH).

    Raises:
        StoreError: it cannot be stored.
    """
    path = _path(root)
    try:
        former = _read(disk, path)
        # An empty log is complete only if it was empty at an orderly stop.
        is_complete = log_end > 0 or (former is not None and former.end == 0)
        was_killed = former is not None and former.boot_id == boot_id
        is_kept = former is not None and is_complete and (was_killed or former.is_durable or former.boot_id == "")
        incarnation = former.incarnation if former is not None and is_kept else secrets.token_hex(8)
        # What a killed process wrote may be in the page cache only, and after a failed flush it stays there for good.
        is_durable = flushes and (former is None or former.is_durable or not was_killed)
        for directory in disk.make_dirs(path.rpartition("/")[0]):
            disk.fsync_dir(directory)
        is_unproven = log_end > 0 and (not is_kept or (former is not None and former.is_unproven))
        has_failed = log_end > 0 and (former is None or former.has_failed)  # None: it could not be written, for example
        document = _MemberDocument(
            incarnation, boot_id, is_unproven=is_unproven, has_failed=has_failed, is_durable=is_durable
        )
        write_atomic(disk, path, msgspec.json.encode(document))
    except OSError as error:
        raise write_error(error, path) from error
    member = InSyncMember(name, incarnation)
    return MemberIdentity(disk, root, member, is_unproven=is_unproven, has_failed=has_failed, is_durable=is_durable)


def log_is_empty(disk: Disk, directory: str) -> bool:
    """Return whether the commit log in `directory` has no record. The first file of a log begins with one."""
    try:
        names = sorted(disk.listdir(directory))
    except OSError:
        return True
    if not names:
        return True
    handle = disk.open(f"{directory}/{names[0]}")
    try:
        return not disk.pread(handle, 8, 0).strip(b"\0")
    finally:
        disk.close(handle)


def _read(disk: Disk, path: str) -> _MemberDocument | None:
    data = read_whole(disk, path)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=_MemberDocument)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("%s is damaged, so this member gets a new incarnation: %s", path, error)
        return None


def _path(root: str) -> str:
    return f"{root}/ariane/member"

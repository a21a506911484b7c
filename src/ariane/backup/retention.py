"""Removes old backups, and the parts that no other backup has."""

from __future__ import annotations

from typing import NamedTuple

from ariane.backup.backup_target import BackupTarget
from ariane.backup.manifest import CHUNKS, list_ids, read_manifest, remove_manifest


class RemovedBackups(NamedTuple):
    """What a retention removed."""

    backups: tuple[str, ...]
    chunks: int


def retain(target: BackupTarget, count: int) -> RemovedBackups:
    """Keep the newest `count` backups, at least one. No backup may be in progress.

    Lists of files go first: a removal that is interrupted leaves parts without a use, which the next one removes.

    Raises:
        StoreError: the target cannot be read or written, or a list that stays is damaged: then nothing is removed.
    """
    ids = list(list_ids(target))
    old, kept = ids[: -max(count, 1)], ids[-max(count, 1) :]
    used = {digest for backup_id in kept for digest in read_manifest(target, backup_id).chunks}
    for backup_id in old:
        remove_manifest(target, backup_id)
    unused = [name for name in target.names(CHUNKS) if name.rpartition("/")[2] not in used]
    for name in unused:
        target.remove(name)
    return RemovedBackups(tuple(old), len(unused))

"""The list of files of a backup, as `backups/ID.json` stores it."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator

import msgspec

from ariane.backup.backup_target import BackupTarget
from ariane.errors import ConfigError, StoreCorrupt

FORMAT = 1
MANIFESTS, CHUNKS = "backups", "chunks"
_SUFFIX = ".json"


class SavedFile(msgspec.Struct, frozen=True):
    """A file of the store."""

    path: str
    """Below the store directory; files of the commit log are in `commitlog/`, wherever they were."""
    size: int
    """Bytes of the file. Those after its chunks are zero."""
    modified_ms: int
    """By the clock of the store's machine."""
    chunks: tuple[str, ...]
    """Digests of its parts, of CHUNK_BYTES each but the last."""
    length: int
    """Bytes in the chunks."""
    records: int = 0
    """Valid records in a file of the commit log."""


class BackupManifest(msgspec.Struct, frozen=True):
    """A backup: a store as it was at one moment."""

    format: int
    id: str
    """UTC time of its start; sorts by age."""
    host: str
    store: str
    """Directory that was backed up."""
    started_ms: int
    finished_ms: int
    log_start: int
    """Offset of the first byte in the commit log."""
    log_end: int
    """Offset after the last record."""
    files: tuple[SavedFile, ...]

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def length(self) -> int:
        """Bytes in all chunks, each counted as often as it is used."""
        return sum(file.length for file in self.files)

    @property
    def chunks(self) -> frozenset[str]:
        return frozenset(digest for file in self.files for digest in file.chunks)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def chunk_name(digest: str) -> str:
    return f"{CHUNKS}/{digest[:2]}/{digest}"


def id_at(time_ms: int) -> str:
    """Return the identifier of a backup that starts at `time_ms`, for example 20261124T093012.345Z."""
    moment = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{time_ms % 1000:03d}Z"


def write_manifest(target: BackupTarget, manifest: BackupManifest) -> None:
    target.write(_name(manifest.id), msgspec.json.format(msgspec.json.encode(manifest)))


def remove_manifest(target: BackupTarget, backup_id: str) -> None:
    target.remove(_name(backup_id))


def read_manifest(target: BackupTarget, backup_id: str | None = None) -> BackupManifest:
    """Return a backup, the newest one by default.

    Raises:
        ConfigError: there is none of that name, or none at all.
        StoreCorrupt: it is not a list of files of this format.
    """
    ids = list(list_ids(target))
    if not ids:
        raise ConfigError("URL", target.url, "it contains no backup")
    chosen = backup_id or ids[-1]
    if chosen not in ids:
        raise ConfigError("--backup", chosen, f"{target.url} has {', '.join(ids[-5:])}")
    name = _name(chosen)
    try:
        manifest = msgspec.json.decode(target.read(name), type=BackupManifest)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(f"{target.url}/{name}", 0, str(error)) from error
    if manifest.format != FORMAT:
        raise StoreCorrupt(
            f"{target.url}/{name}", 0, f"its format is {manifest.format}, and this version reads {FORMAT}"
        )
    return manifest


def list_ids(target: BackupTarget) -> Iterator[str]:
    """Yield the backups of a target, oldest first."""
    for name in sorted(target.names(MANIFESTS)):
        if name.endswith(_SUFFIX):
            yield name.removeprefix(f"{MANIFESTS}/").removesuffix(_SUFFIX)


def _name(backup_id: str) -> str:
    return f"{MANIFESTS}/{backup_id}{_SUFFIX}"

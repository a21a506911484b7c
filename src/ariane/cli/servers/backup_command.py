"""`ariane backup` and `ariane restore`: copies of a store directory, in a directory or an object store."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import flag_option, number_option, path_option, text_option
from ariane.cli.output.help_format import create_app
from ariane.cli.servers.store_command import CommitLog, Directory
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import ArianeError

app = create_app("Back up store directories; the broker may be running.")

Url = Annotated[
    str,
    typer.Argument(
        parser=shared_options.non_blank, metavar="URL", help="Directory, or URL such as s3://bucket/broker-a."
    ),
]
BackupId = Annotated[
    str | None, text_option("--backup", metavar="ID", help="A backup of the list; the newest by default.")
]


class DamagedBackup(ArianeError):
    """A backup cannot be restored whole."""


@app.command("create", "ariane backup create ~/.ariane/store /backups/broker-a --retain 7")
def create(
    directory: Directory,
    url: Url,
    commit_log: CommitLog = None,
    retain: Annotated[
        int | None, number_option(minimum=1, help="Keep so many backups, the new one included; all by default.")
    ] = None,
    as_json: shared_options.AsJson = False,
) -> None:
    """Copy to the URL what its backups do not have, and list it as a new backup."""
    from ariane.backup.backup_target import open_target
    from ariane.backup.create import create_backup, sole_backup
    from ariane.backup.retention import retain as retain_newest

    target = open_target(url)
    root = str(directory.absolute())
    with sole_backup(root):
        outcome = create_backup(
            root, target, now_ms=SYSTEM_CLOCK.now_ms, commit_log=str(commit_log.absolute()) if commit_log else None
        )
        removal = retain_newest(target, retain) if retain else None
    for corrupt in outcome.corrupt_ranges:
        typer.echo(f"Warning: {corrupt}; copied as they are", err=True)
    manifest = outcome.manifest
    if as_json:
        removed = list(removal.backups) if removal else []
        typer.echo(json.dumps(_row(manifest) | {"written": outcome.written, "removed": removed}))
        return
    typer.echo(
        f"{manifest.id}: {manifest.records:,} records, log {manifest.log_start:,} to {manifest.log_end:,}; "
        f"{outcome.written:,} of {manifest.length:,} bytes written"
    )
    if removal and removal.backups:
        typer.echo(f"Removed {len(removal.backups)} older backups: {', '.join(removal.backups)}")


@app.command("list", "ariane backup list /backups/broker-a")
def show(url: Url, as_json: shared_options.AsJson = False) -> None:
    """List the backups of a URL, oldest first."""
    from ariane.backup.backup_target import open_target
    from ariane.backup.manifest import list_ids, read_manifest

    target = open_target(url)
    for backup_id in list_ids(target):
        manifest = read_manifest(target, backup_id)
        if as_json:
            typer.echo(json.dumps(_row(manifest)))
        else:
            typer.echo(
                f"{manifest.id}  {_utc(manifest.started_ms)}  {manifest.records:,} records, {manifest.length:,} bytes, "
                f"of {manifest.store} on {manifest.host}"
            )


@app.command("check", "ariane backup check /backups/broker-a")
def check(
    url: Url,
    backup: BackupId = None,
    every: Annotated[bool, flag_option("--all", "Check all backups.")] = False,
) -> None:
    """Read all parts of a backup and compare them with their digests.

    Exit status: 0 if it can be restored, 1 if not.
    """
    from ariane.backup.backup_target import open_target
    from ariane.backup.manifest import list_ids, read_manifest
    from ariane.backup.restore import find_faults

    target = open_target(url)
    faults = 0
    sound: set[str] = set()
    for backup_id in list_ids(target) if every else [backup]:
        manifest = read_manifest(target, backup_id)
        count = 0
        for fault in find_faults(target, manifest, sound=sound):
            count += 1
            typer.echo(f"{manifest.id}: {fault.file.path}: {fault.reason}", err=True)
        if not count:
            typer.echo(f"{manifest.id}: {len(manifest.files):,} files, {manifest.length:,} bytes: no faults")
        faults += count
    if faults:
        raise DamagedBackup(f"{faults} parts are missing or damaged")


def restore(
    url: Url,
    directory: Directory,
    backup: BackupId = None,
    commit_log: Annotated[
        Path | None, path_option(metavar="DIR", help="New directory of the commit log, for storePathCommitLog.")
    ] = None,
) -> None:
    """Create a store directory from a backup.

    The directory must not exist. A broker that starts on it rebuilds queues and indexes from the log.
    """
    from ariane.backup.backup_target import open_target
    from ariane.backup.manifest import read_manifest
    from ariane.backup.restore import restore_backup

    target = open_target(url)
    manifest = read_manifest(target, backup)
    root = directory.absolute()
    restore_backup(target, manifest, root, commit_log=commit_log.absolute() if commit_log else None)
    typer.echo(f"{root}: {manifest.records:,} records of {_utc(manifest.started_ms)}, from backup {manifest.id}")


def _row(manifest: Any) -> dict[str, Any]:
    """Return a backup without its files."""
    row = {name: getattr(manifest, name) for name in manifest.__struct_fields__ if name != "files"}
    return row | {"records": manifest.records, "bytes": manifest.length}


def _utc(time_ms: int) -> str:
    return f"{datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC):%Y-%m-%d %H:%M:%S}Z"

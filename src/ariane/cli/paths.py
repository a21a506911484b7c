"""The homes of this user: where `ariane up` stores everything, and where the other commands look.

HOME/                     --home, else $ARIANE_HOME, else ~/.ariane; `up --demo` without --home makes a temporary one
  conf/  namesrv.conf broker.conf     written once, then yours
  store/                              the broker's, in RocketMQ's formats
  tables/                             the pipeline's: tables, checkpoints, spark.log
  archive/                            of `ariane archive run`
  logs/                               up.log namesrv.log broker.log pipeline.err and what they said before they could log
  up.pid namesrv.pid broker.pid pipeline.pid

Every command resolves its home by one rule (`tables_of`, `archive_of`) and names the directory that it reads or writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import typer

from ariane.cli.shared_options import local_path
from ariane.errors import ConfigError, StoreError, UsageError

TABLES = "tables"  # of the pipeline; all that is kept of a demo, so that `ariane trace` still answers after `up --demo --exit`
ARCHIVE = "archive"
UP_PID = "up.pid"


def default_home() -> Path:
    """Return $ARIANE_HOME, or ~/.ariane."""
    chosen = os.environ.get("ARIANE_HOME")
    if not chosen:
        return Path.home() / ".ariane"
    try:
        return local_path(chosen)
    except typer.BadParameter as error:
        raise UsageError("ARIANE_HOME", chosen, str(error)) from None


def tables_dir(home: Path | None) -> Path:
    """Return the directory of the pipeline's tables: HOME/tables, or `home` itself if it is no home of `ariane up`."""
    return _part_of(home, TABLES)


def archive_dir(home: Path | None) -> Path:
    """Return the directory of the archive: HOME/archive, or `home` itself if it is no home of `ariane up`."""
    return _part_of(home, ARCHIVE)


def existing_tables_dir(home: Path | None) -> Path:
    """Return the directory of the tables that a command reads.

    Without `home`, and as long as the default home does not exist, it is that of the last demo.

    Raises:
        StoreError: there is no such directory. Names the demos that left one.
    """
    tables = tables_dir(home)
    if tables.is_dir():
        return tables
    demos = [demo for demo in demo_homes() if (demo / TABLES).is_dir()]
    if home is None and demos and not default_home().exists():
        return demos[0] / TABLES
    hint = "".join(f"\nThe demo has tables: add --home {demo}" for demo in demos)
    raise StoreError(f"no tables in {tables}: run `ariane pipeline run all`, or name another home with --home{hint}")


def _part_of(home: Path | None, name: str) -> Path:
    if home is None:
        return default_home() / name
    is_default = home.resolve() == default_home().resolve()
    is_home = is_default or (home / UP_PID).exists() or (home / TABLES).is_dir()
    has_tables = any(home.glob("*/CURRENT"))
    return home / name if is_home and not has_tables else home


@contextlib.contextmanager
def locked_home(home: Path) -> Iterator[Path]:
    """`home`, made if it is not there, for one `ariane up` at a time."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        pid_file = (home / UP_PID).open("a+", encoding="ascii")
    except OSError as error:
        raise ConfigError("--home", str(home), f"cannot be written: {error.strerror}") from error
    with pid_file:
        try:
            fcntl.flock(pid_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid_file.seek(0)
            fix = f"`ariane up` runs there already, pid {pid_file.read().strip()}; stop it or choose another home"
            raise ConfigError("--home", str(home), fix) from None
        pid_file.truncate(0)
        pid_file.write(f"{os.getpid()}\n")
        pid_file.flush()
        yield home


@contextlib.contextmanager
def temporary_home() -> Iterator[Path]:
    """A home for one demo, held. In the end only its tables stay, until the next demo removes them."""
    for earlier in demo_homes():
        if not _in_use(earlier):
            shutil.rmtree(earlier, ignore_errors=True)
    home = Path(tempfile.mkdtemp(prefix=_demo_prefix()))
    with locked_home(home):
        yield home
        for entry in home.iterdir():
            if entry.is_dir() and entry.name != TABLES:
                shutil.rmtree(entry)
            elif entry.is_file() and entry.name != UP_PID:
                entry.unlink()


def demo_homes() -> list[Path]:
    """The homes of demos of this user, newest first."""
    found = [p for p in Path(tempfile.gettempdir()).glob(f"{_demo_prefix()}*") if p.is_dir()]
    return sorted((p for p in found if p.stat().st_uid == os.getuid()), key=lambda p: p.stat().st_mtime, reverse=True)


def _demo_prefix() -> str:
    return f"ariane-demo-{os.getuid()}-"


def _in_use(home: Path) -> bool:
    try:
        with (home / UP_PID).open("r", encoding="ascii") as pid_file:
            fcntl.flock(pid_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False  # died before it held its home
    return False

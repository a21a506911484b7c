"""Home directories: where `ariane up` stores everything, and where the other commands read.

HOME/                     --home, else $ARIANE_HOME, else ~/.ariane; `up --demo` without --home creates a temporary one
  conf/  namesrv.conf broker.conf slave.conf …   created once, then yours to edit
  store/ store-slave/ store-b/ …      of the brokers (`planned_brokers`), in RocketMQ's file formats
  etcd/                               of --failover
  tables/                             of the pipeline: tables, checkpoints, spark.log
  archive/                            of `ariane archive run`
  tls/                                of --tls: a certificate authority, and the certificate of the servers
  console/                            of the web console: accounts, sessions, alert rules, audit log
  logs/                               up.log namesrv.log broker.log … *.err (output before the log was open)
  up.pid namesrv.pid broker.pid slave.pid console.pid pipeline.pid …

All commands resolve the home by one rule (`tables_dir`, `archive_dir`, `console_dir`) and print the directory that they use.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from ariane.cli.options.shared_options import local_path
from ariane.errors import ConfigError, StoreError, UsageError
from ariane.tables.table_home import Home, object_home
from ariane.tables.table_store import open_store

TABLES = "tables"  # the only part of a demo that is retained: `ariane trace` works after `up --demo --exit`
ARCHIVE = "archive"
CONSOLE = "console"
TLS = "tls"
UP_PID = "up.pid"


def tables_home(text: object) -> Home:
    """Return a local directory, or the home with a URI: s3://bucket/prefix."""
    value = str(text)
    if "://" not in value:
        return local_path(value)
    try:
        return object_home(value, default_home())
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


# typer takes one type per option; the parser returns both.
if TYPE_CHECKING:
    OptionalHome: TypeAlias = Home | None
else:
    OptionalHome = Path | None
TablesHome = Annotated[
    OptionalHome,
    typer.Option(
        "--home",
        parser=tables_home,
        metavar="DIR|URI",
        help="Home directory of `ariane up`, a directory of tables, or s3://….  [default: $ARIANE_HOME or ~/.ariane]",
    ),
]


def default_home() -> Path:
    """Return $ARIANE_HOME, or ~/.ariane."""
    home = os.environ.get("ARIANE_HOME")
    if not home:
        return Path.home() / ".ariane"
    try:
        return local_path(home)
    except typer.BadParameter as error:
        raise UsageError("ARIANE_HOME", home, str(error)) from None


def tables_dir(home: Home | None) -> Home:
    """Return the directory of the pipeline's tables: HOME/tables, or `home` itself unless `ariane up` uses it."""
    return _part_of(home, TABLES)


def archive_dir(home: Home | None) -> Home:
    """Return the directory of the archive: HOME/archive, or `home` itself unless `ariane up` uses it."""
    return _part_of(home, ARCHIVE)


def console_dir(home: Home | None) -> Path:
    """Return the directory of the web console's data: HOME/console, of the default home if `home` is a directory of tables."""
    directory = open_store(home).directory if home is not None else None
    if directory is None:
        return default_home() / CONSOLE
    # Accounts that exist are found in any case: without them, a console is open to everyone on the machine.
    is_home = (directory / CONSOLE).is_dir() or (directory / UP_PID).exists()
    return (directory if is_home or not _has_tables(directory) else default_home()) / CONSOLE


def existing_tables_dir(home: Home | None) -> Home:
    """Return the directory of the tables that a command reads.

    Without `home`, and if the default home does not exist, this is the directory of the last demo.

    Raises:
        StoreError: the directory does not exist. Names the demos that have tables.
    """
    tables = tables_dir(home)
    if open_store(tables).exists():
        return tables
    demos = [demo for demo in demo_homes() if (demo / TABLES).is_dir()]
    # Only for users who never ran anything but demos: others would be shown the wrong cluster's tables.
    if home is None and demos and not default_home().exists():
        return demos[0] / TABLES
    from ariane.reports.tables.table_contents import PIPELINE_NEEDS

    hint = "".join(f"\n{_demo_state(demo)} has tables of its own cluster: use --home {demo}" for demo in demos)
    raise StoreError(
        f"no tables in {tables}: run `ariane pipeline run all` ({PIPELINE_NEEDS}), "
        f"or specify another home with --home{hint}"
    )


def _part_of(home: Home | None, name: str) -> Home:
    if home is None:
        return default_home() / name
    directory = open_store(home).directory
    if directory is None:
        return home
    is_default = directory.resolve() == default_home().resolve()
    # A directory counts as a home by what `ariane up` leaves there; any other may be a directory of tables itself.
    is_home = is_default or (directory / UP_PID).exists() or (directory / TABLES).is_dir()
    return directory / name if is_home and not _has_tables(directory) else home


def _has_tables(home: Path) -> bool:
    return any(home.glob("*/CURRENT"))


@contextlib.contextmanager
def locked_home(home: Path) -> Iterator[Path]:
    """Provide `home`, created if necessary, locked against another `ariane up`.

    Raises:
        ConfigError: the directory cannot be written, or another `ariane up` uses it.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        # Not truncated before the lock is held: the pid of the running process is needed for the error.
        pid_file = (home / UP_PID).open("a+", encoding="ascii")
    except OSError as error:
        raise ConfigError("--home", str(home), f"not writable: {error.strerror}") from error
    with pid_file:
        try:
            fcntl.flock(pid_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid_file.seek(0)
            fix = f"`ariane up` is already running there (pid {pid_file.read().strip()}); stop it or use another home"
            raise ConfigError("--home", str(home), fix) from None
        pid_file.truncate(0)
        pid_file.write(f"{os.getpid()}\n")
        pid_file.flush()
        yield home


@contextlib.contextmanager
def temporary_home() -> Iterator[Path]:
    """Provide a locked home for one demo. Its tables remain afterwards, until the next demo removes them."""
    for previous in demo_homes():
        if not _is_locked(previous):
            shutil.rmtree(previous, ignore_errors=True)
    home = Path(tempfile.mkdtemp(prefix=_demo_prefix()))
    with locked_home(home):
        yield home
        # The pid file stays until the lock is released: it is the lock.
        for entry in home.iterdir():
            if entry.is_dir() and entry.name != TABLES:
                shutil.rmtree(entry)
            elif entry.is_file() and entry.name != UP_PID:
                entry.unlink()


def demo_homes() -> list[Path]:
    """Return the homes of this user's demos, newest first."""
    homes = [p for p in Path(tempfile.gettempdir()).glob(f"{_demo_prefix()}*") if p.is_dir()]
    # Only this user's: the temporary directory is shared, and anyone may create a directory with this prefix.
    return sorted((p for p in homes if p.stat().st_uid == os.getuid()), key=lambda p: p.stat().st_mtime, reverse=True)


def _demo_state(home: Path) -> str:
    """Return which demo has this home: that of a running `ariane up`, or one that ended."""
    if not _is_locked(home):
        return "A demo that ended"
    pid = (home / UP_PID).read_text(encoding="ascii").strip()
    return f"The running demo of another process (pid {pid})"


def _demo_prefix() -> str:
    return f"ariane-demo-{os.getuid()}-"


def _is_locked(home: Path) -> bool:
    try:
        with (home / UP_PID).open("r", encoding="ascii") as pid_file:
            fcntl.flock(pid_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False  # a demo that died before it locked its home
    return False

"""Where `ariane up` keeps things.

HOME/                     ~/.ariane, $ARIANE_HOME, or --home; the demo makes one among the temporary files
  conf/  namesrv.conf broker.conf     written once, then yours
  store/                              the broker's, in RocketMQ's formats
  tables/  checkpoints/               the pipeline's
  logs/                               up.log namesrv.log broker.log pipeline.err and what they said before they could log
  up.pid namesrv.pid broker.pid pipeline.pid
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ariane.errors import ConfigError

TABLES = "tables"  # of the pipeline; all that is kept of a demo, so that `ariane trace` still answers after `up --demo --exit`


def default_home() -> Path:
    """$ARIANE_HOME, or ~/.ariane."""
    chosen = os.environ.get("ARIANE_HOME")
    return Path(chosen).expanduser() if chosen else Path.home() / ".ariane"


@contextlib.contextmanager
def held(home: Path) -> Iterator[Path]:
    """`home`, made if it is not there, for one `ariane up` at a time."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        pid_file = (home / "up.pid").open("a+", encoding="ascii")
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
def temporary() -> Iterator[Path]:
    """A home for one demo, held. In the end only its tables stay, until the next demo removes them."""
    for earlier in demo_homes():
        if not _in_use(earlier):
            shutil.rmtree(earlier, ignore_errors=True)
    home = Path(tempfile.mkdtemp(prefix=_demo_prefix()))
    with held(home):
        yield home
        for entry in home.iterdir():
            if entry.is_dir() and entry.name != TABLES:
                shutil.rmtree(entry)
            elif entry.is_file() and entry.name != "up.pid":
                entry.unlink()


def demo_homes() -> list[Path]:
    """The homes of demos of this user, newest first."""
    found = [p for p in Path(tempfile.gettempdir()).glob(f"{_demo_prefix()}*") if p.is_dir()]
    return sorted((p for p in found if p.stat().st_uid == os.getuid()), key=lambda p: p.stat().st_mtime, reverse=True)


def newest_tables() -> Path:
    """The tables that were written last: of ~/.ariane, or of a demo. ConfigError when there are none."""
    tables = [one / TABLES for one in (default_home(), *demo_homes()) if (one / TABLES).is_dir()]
    if not tables:
        fix = (
            "no tables of this user are found: run `ariane up --demo` or `ariane pipeline run all`, or name a directory"
        )
        raise ConfigError("--home", "", fix)
    return max(tables, key=lambda path: path.stat().st_mtime)


def _demo_prefix() -> str:
    return f"ariane-demo-{os.getuid()}-"


def _in_use(home: Path) -> bool:
    try:
        with (home / "up.pid").open("r", encoding="ascii") as pid_file:
            fcntl.flock(pid_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False  # died before it held its home
    return False

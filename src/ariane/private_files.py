"""Small files that hold secrets: replaced as a whole, and readable by their owner only from the moment they exist."""

from __future__ import annotations

import os
from pathlib import Path

PRIVATE_MODE = 0o600


def replace_private(path: Path, data: bytes, mode: int = PRIVATE_MODE) -> None:
    """Replace the content of a file atomically and durably: a crash leaves the old content or the new one.

    Args:
        path: The file; its directory exists.
        data: The new content.
        mode: Permissions of the file. The temporary file never has more than PRIVATE_MODE while it is written.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # of an earlier attempt, with other permissions perhaps
    # The mode is set at creation: a chmod after the write would leave a moment in which others can open the file.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_MODE)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: str | Path) -> None:
    """Make created and renamed files of a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

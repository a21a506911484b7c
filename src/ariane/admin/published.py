"""Tables that are replaced as a whole: which version there is, and where. Anything that reads Parquet can read them.

DIR/v=00000012/part-….parquet    the version that CURRENT names
DIR/v=00000011/…                 the one before, kept for who is still reading it
DIR/CURRENT                      one line of JSON: version, as_of_ms, rows; replaced by rename
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from ariane.errors import StoreError

CURRENT = "CURRENT"


class Version(NamedTuple):
    """What CURRENT says. `as_of_ms`: store time of the newest event in it, null when it has none."""

    version: int
    as_of_ms: int | None
    rows: int


def current(directory: Path) -> Version | None:
    """The version that is published; None before the first."""
    try:
        text = (directory / CURRENT).read_text()
    except FileNotFoundError:
        return None
    try:
        return Version(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{directory / CURRENT} is no table pointer: {error}; run the pipeline once to write it anew"
        ) from error


def path_of(directory: Path, version: Version) -> Path:
    return directory / f"v={version.version:08d}"

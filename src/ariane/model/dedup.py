"""The property by which a message that was written twice is known: which row of which run of a job it was.

    ARIANE_DEDUP = <run> / <batch> / <partition> / <sequence>

    run        query id of a streaming query, run id of a batch job
    batch      micro-batch of the query; 0 for a batch job
    partition  partition of the frame that was written
    sequence   row in the partition, from 0

A task or a micro-batch that runs again writes the same rows under the same names, if its partitions hold the same rows in the
same order.
"""

from __future__ import annotations

import re
from typing import NamedTuple

DEDUP = "ARIANE_DEDUP"
RUN_MAX = 64  # characters; a query id has 36

_RUN = re.compile(r"[A-Za-z0-9_-]+\Z")
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,17})\Z")  # one text for each number, within 64 bits


class Row(NamedTuple):
    """One row of one run."""

    run: str
    batch: int
    partition: int
    sequence: int


def prefix(run: str, batch: int, partition: int) -> str:
    """What the names of all rows of a partition begin with: the sequence follows."""
    return f"{run}/{batch}/{partition}/"


def text(row: Row) -> str:
    return f"{prefix(*row[:3])}{row.sequence}"


def parse(value: str) -> Row | None:
    """The row that a property names; None when it is none of ours."""
    parts = value.split("/")
    if len(parts) != 4 or run_fault(parts[0]) or not all(_NUMBER.match(part) for part in parts[1:]):
        return None
    return Row(parts[0], int(parts[1]), int(parts[2]), int(parts[3]))


def run_fault(run: str) -> str | None:
    """Why `run` cannot name a run, or None."""
    if len(run) <= RUN_MAX and _RUN.match(run):
        return None
    return f"use 1 to {RUN_MAX} letters, digits, _ and -"

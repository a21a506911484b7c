"""The property that identifies a message which was written twice: the row of a run of a job that it came from.

    ARIANE_DEDUP = <run> / <batch> / <partition> / <sequence>

    run        query id of a streaming query, run id of a batch job
    batch      micro-batch of the query; 0 for a batch job
    partition  partition of the DataFrame
    sequence   row in the partition, from 0

A task or micro-batch that runs again writes the same rows with the same values, if its partitions hold the same rows in the
same order.
"""

from __future__ import annotations

import re
from typing import NamedTuple

DEDUP = "ARIANE_DEDUP"
RUN_MAX = 64  # characters; a query id has 36

_RUN = re.compile(r"[A-Za-z0-9_-]+\Z")
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,17})\Z")  # one text per number, within 64 bits


class Row(NamedTuple):
    """One row of one run."""

    run: str
    batch: int
    partition: int
    sequence: int


def prefix(run: str, batch: int, partition: int) -> str:
    """Return the common prefix of the values of all rows in a partition; the sequence follows."""
    return f"{run}/{batch}/{partition}/"


def text(row: Row) -> str:
    return f"{prefix(*row[:3])}{row.sequence}"


def parse(value: str) -> Row | None:
    """Return the row that a property identifies; None if the value has another form."""
    parts = value.split("/")
    if len(parts) != 4 or run_fault(parts[0]) or not all(_NUMBER.match(part) for part in parts[1:]):
        return None
    return Row(parts[0], int(parts[1]), int(parts[2]), int(parts[3]))


def run_fault(run: str) -> str | None:
    """Return why `run` is not a valid run id, or None if it is."""
    if len(run) <= RUN_MAX and _RUN.match(run):
        return None
    return f"use 1 to {RUN_MAX} letters, digits, _ and -"

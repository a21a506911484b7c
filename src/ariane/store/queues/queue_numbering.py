"""Decides which records of a queue are valid if they are read again from the log and their numbers are not consecutive.

    5 6 7 9 10      9 follows 7: 8 was lost in a corrupt range; it gets an entry that is skipped, 9 keeps its number
    5 6 900 8 9     900 instead of 7: its number is damaged (nothing in a record protects it); 7 counts as lost
    5 6 3 7 8       3 belongs elsewhere (a damaged queue id or topic): it gets no entry
    5 6 0 1 2       the topic was deleted and created again: the queue restarts, if `NumberingRestarts` allows it
    5 6 0           a torn write that lost its number, or the first record of a topic that was created again: as above

A record out of order is deferred until the next record of its queue decides which case it is, or none follows. One damaged number
must neither empty a queue nor fill it with empty entries; and a lost one must not shift the later ones.

A restart empties the queue, so it drops acknowledged records if the number was damaged. This broker records its deletions
(`deletions`), Java does not: a number can restart only where Java, or a master, may have deleted a topic.
[no counterpart in Java, which appends a higher number as it is and drops a lower one]
"""

from __future__ import annotations

import enum
from typing import NamedTuple

SMALL_GAP = 16  # missing records that need no explanation: a few empty entries are harmless, a dropped record is not


class NumberingRestarts(enum.Enum):
    """Which lower numbers mean that the topic was deleted and created again."""

    NEVER = "never"
    """All deletions are recorded."""
    CONFIRMED = "confirmed"
    """A deletion may be missing: a restart needs two records in a row that have no other explanation."""
    LIKELY = "likely"
    """Deletions are not recorded, and records are hardly torn: a single 0 is enough."""


class NumberingDecision(NamedTuple):
    """Outcome for a deferred record and the new one that follows it."""

    place_deferred: bool  # the deferred record gets an entry, at its number
    next_number: int  # expected number if it does not
    place_new: bool  # the new record gets an entry; otherwise it is deferred in turn


def decide(expected: int, deferred: int, number: int, *, restarts: NumberingRestarts) -> NumberingDecision:
    """Decide about a record out of order.

    Args:
        expected: Number of the next entry.
        deferred: Number of the record that arrived instead.
        number: number of the next record of the queue.
    """
    is_likely = restarts is NumberingRestarts.LIKELY
    # 0 (0) 1: the second 0 may be the torn record 1, whose number was then assigned again.
    backward = (is_likely and deferred == 0) or (restarts is not NumberingRestarts.NEVER and number != expected)
    if number == deferred + 1 and (deferred > expected or backward):
        return NumberingDecision(True, deferred, True)
    if number in (expected, expected + 1):
        return NumberingDecision(False, number, True)
    if expected < deferred < number or (is_likely and deferred == 0 < number < expected):
        return NumberingDecision(True, deferred, False)
    return NumberingDecision(False, expected, False)


def is_last_placed(
    expected: int, deferred: int, missing_max: int, *, restarts: NumberingRestarts, is_new: bool
) -> bool:
    """Return whether a record out of order gets an entry if no record of its queue follows.

    Args:
        missing_max: number of records that may have been lost.
        is_new: the queue is built from nothing, so any number may be its first.
    """
    if deferred > expected:
        return is_new or deferred - expected <= missing_max + SMALL_GAP
    return restarts is NumberingRestarts.LIKELY and deferred == 0

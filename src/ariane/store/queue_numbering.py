"""Which records of a queue to believe when they are read again from the log and their numbers do not follow one another.

    5 6 7 9 10      7 was followed by 9: 8 was lost in a hole; it gets an entry that is passed over, 9 keeps its number
    5 6 900 8 9     900 stands where 7 should be: its number is damaged (nothing in a record protects it); 7 counts as lost
    5 6 3 7 8       3 does not belong here (a damaged queue id or topic): it gets no entry
    5 6 0 1 2       the topic was deleted and created again: the queue starts again, if `Restarts` allows it here
    5 6 0           a torn write that lost its number, or the first record of a topic that was created again: see `Restarts`

A record out of order is held until the next one of its queue tells which of these it is, or none follows. One damaged number
must neither empty a queue nor fill it with empty entries; and a lost one must not shift those behind it.

A restart empties the queue, so it drops acknowledged records if the number was damaged. This broker records its deletions
(`deletions`), Java does not: only where Java, or a master, may have deleted a topic can a number restart.
[no counterpart in Java, which appends what is ahead wherever it says and drops what is behind]
"""

from __future__ import annotations

import enum
from typing import NamedTuple

SMALL_GAP = 16  # missing records that need no explanation: so few empty entries harm nobody, a record left out would


class NumberingRestarts(enum.Enum):
    """Which lower numbers mean that the topic was deleted and created again."""

    NEVER = "never"
    """All deletions are recorded."""
    CONFIRMED = "confirmed"
    """A deletion may be missing: a restart needs two records in a row that have no other explanation."""
    LIKELY = "likely"
    """Deletions are not recorded, and records are hardly torn: a single 0 is enough."""


class NumberingDecision(NamedTuple):
    """What becomes of a held record and of the one that follows it."""

    place_held: bool  # the held record is placed, at its number
    next_number: int  # where the numbers go on when it is not
    place_new: bool  # the new one is placed, else it is held in turn


def decide(due: int, held: int, number: int, *, restarts: NumberingRestarts) -> NumberingDecision:
    """Decide about a record numbered `held`, which came where `due` was expected, now that one numbered `number` comes."""
    is_likely = restarts is NumberingRestarts.LIKELY
    # 0 (0) 1: the second 0 may be the torn record 1, whose number was then given again.
    backward = (is_likely and held == 0) or (restarts is not NumberingRestarts.NEVER and number != due)
    if number == held + 1 and (held > due or backward):
        return NumberingDecision(True, held, True)
    if number in (due, due + 1):
        return NumberingDecision(False, number, True)
    if due < held < number or (is_likely and held == 0 < number < due):
        return NumberingDecision(True, held, False)
    return NumberingDecision(False, due, False)


def is_last_placed(due: int, held: int, missing_max: int, *, restarts: NumberingRestarts, is_new: bool) -> bool:
    """Return whether to place a record out of order that none of its queue follows.

    Args:
        missing_max: how many records may have been lost.
        is_new: the queue is built from nothing, so any number may be its first.
    """
    if held > due:
        return is_new or held - due <= missing_max + SMALL_GAP
    return restarts is NumberingRestarts.LIKELY and held == 0

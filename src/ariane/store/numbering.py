"""Which records of a queue to believe when they are read again from the log and their numbers do not follow one another.

    5 6 7 9 10      7 was followed by 9: 8 was lost in a hole; it gets an entry that is passed over, 9 keeps its number
    5 6 900 8 9     900 stands where 7 should be: its number is damaged (nothing in a record protects it); 7 counts as lost
    5 6 3 7 8       3 does not belong here (a damaged queue id or topic): it gets no entry
    5 6 0 1 2       the topic was deleted and made again: the queue begins anew

A record out of order is held until the next one of its queue tells which of these it is, or none follows. One damaged number
must neither empty a queue nor fill it with empty entries; and a lost one must not shift those behind it.
[no counterpart in Java, which appends what is ahead wherever it says and drops what is behind]
"""

from __future__ import annotations

from typing import NamedTuple

SMALL_GAP = 16  # missing records that need no explanation: so few empty entries harm nobody, a record left out would


class Verdict(NamedTuple):
    """What becomes of a held record and of the one that follows it."""

    held: bool  # the held record is placed, at its number
    skip: int  # where the numbers go on when it is not
    follows: bool  # the new one is placed, else it is held in turn


def judge(due: int, held: int, number: int, *, restarts: bool) -> Verdict:
    """A record numbered `held` came where number `due` was expected, and now one numbered `number` comes.

    `restarts`: the topic may have been deleted and made again within what is read.
    """
    backward = restarts and (held == 0 or number != due)
    if number == held + 1 and (held > due or backward):
        return Verdict(True, held, True)
    if number in (due, due + 1):
        return Verdict(False, number, True)
    if due < held < number or (restarts and held == 0 < number < due):
        return Verdict(True, held, False)
    return Verdict(False, due, False)


def last_stays(due: int, held: int, missing_max: int, *, restarts: bool, empty: bool) -> bool:
    """Whether a record out of order that none of its queue follows is believed; `missing_max` records may have been lost."""
    if held > due:
        return (empty and restarts) or held - due <= missing_max + SMALL_GAP
    return restarts and held == 0

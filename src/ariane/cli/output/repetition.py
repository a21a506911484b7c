"""Repeats the output of a command for `--watch`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from time import sleep

CLEAR_SCREEN = "\x1b[H\x1b[2J\x1b[3J"


def rounds(interval_s: float | None) -> Iterator[int]:
    """Yield the numbers of rounds, from 0: one without an interval, otherwise without end."""
    for number in count():
        yield number
        if interval_s is None:
            return
        sleep(interval_s)


def clear_screen() -> None:
    """Clear the screen of a terminal; print nothing into a pipe."""
    if sys.stdout.isatty():
        print(CLEAR_SCREEN, end="")

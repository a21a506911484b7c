"""Repeats blocking calls that fail with transient errors, by the rule and the back-off of all clients (`protocol.transient`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeVar

from ariane.errors import ArianeError
from ariane.protocol.client_rules.transient import RETRY_BACKOFF, is_transient

T = TypeVar("T")


def call_with_retries(operation: Callable[[], T], retries: int, pause: Callable[[ArianeError, float], None]) -> T:
    """Return the result of `operation`, repeated up to `retries` times.

    Args:
        operation: What to call.
        retries: Maximum number of repetitions.
        pause: Reports the error and waits for the given seconds, before each repetition.

    Raises:
        ArianeError: the error was permanent, or the last of the transient ones.
    """
    for failures in itertools.count(1):
        try:
            return operation()
        except ArianeError as error:
            if failures > retries or not is_transient(error):
                raise
            pause(error, RETRY_BACKOFF.delay_s(failures))
    raise AssertionError("unreachable")

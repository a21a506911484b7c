"""Buckets: ten minutes of a table. Files belong to buckets, and what is folded is folded bucket by bucket.

    2026-11-21T1020   rows that begin between 10:20 and 10:30 UTC
    unknown-07        rows whose id tells no time, by a hash of the id

Everything about a message has to come into one bucket, however late it comes and whoever tells it. So the bucket is read out of
the message's unique id, in which the client wrote how long its month had lasted (`ariane.model.ids`): not the time of anything,
for the client's clock and time zone are in it, but the same for all who know the id. Which month it was is taken from the time
at which the broker stored the news: the last one that makes the id no more than `AHEAD_MS` younger than its news.
"""

from __future__ import annotations

import re
import zlib
from datetime import UTC, datetime

BUCKET_MINUTES = 10
BUCKET_MS = BUCKET_MINUTES * 60_000
UNTIMED_BUCKETS = 16  # buckets for ids without a time

# How far the id's time may lie ahead of the news: clients count from midnight of their time zone (14 hours at most), and
# their clocks may be ahead.
MAX_AHEAD_MS = 15 * 3_600_000
CANDIDATE_MONTHS = 3  # this month and the two before: an id of the 31st may be as old as two months' beginnings
MAX_COUNTED_MS = 32 * 86_400_000  # a month, and a day for a process that has not noticed its end

UNIQUE_ID = re.compile(r"(?:[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})")


def bucket_of_time(ms: int) -> str:
    """The bucket of an instant, in ms since the epoch."""
    return f"{datetime.fromtimestamp(ms // BUCKET_MS * BUCKET_MS / 1000, UTC):%Y-%m-%dT%H%M}"


def bucket_start_ms(bucket: str) -> int | None:
    """When a bucket begins; None for those of ids without a time."""
    try:
        return int(datetime.strptime(bucket, "%Y-%m-%dT%H%M").replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return None


def bucket_of_id(message_id: str, near_ms: int) -> str:
    """The bucket of a message by its unique id, of which something was stored at `near_ms`."""
    counted = int(message_id[-12:-4], 16) if UNIQUE_ID.fullmatch(message_id) else None
    latest_ms = near_ms + MAX_AHEAD_MS
    if counted is not None and counted <= MAX_COUNTED_MS:
        return bucket_of_time(max(at for month in _months(latest_ms) if (at := month + counted) <= latest_ms))
    return f"unknown-{zlib.crc32(message_id.encode()) % UNTIMED_BUCKETS:02d}"


def candidate_buckets(message_id: str, since_ms: int, until_ms: int) -> set[str]:
    """Every bucket that a message's rows may lie in, when its news were stored between these times."""
    near = {min(since_ms + days * 86_400_000, until_ms) for days in range((until_ms - since_ms) // 86_400_000 + 2)}
    return {bucket_of_id(message_id, ms) for ms in near}


def _months(latest_ms: int) -> list[int]:
    """Beginnings of the month of an instant, and of those before it, in ms, UTC."""
    at = datetime.fromtimestamp(latest_ms / 1000, UTC)
    count = at.year * 12 + at.month - 1
    return [
        int(datetime((count - back) // 12, (count - back) % 12 + 1, 1, tzinfo=UTC).timestamp() * 1000)
        for back in range(CANDIDATE_MONTHS)
    ]

"""Time buckets: ten minutes of a table. A file belongs to one bucket, and tables are computed bucket by bucket.

    2026-11-21T1020   rows between 10:20 and 10:30 UTC
    unknown-07        rows whose message id contains no time, distributed by a hash of the id

All rows of a message must be in one bucket, however late they arrive and whichever client sent them. The bucket is therefore
computed from the message's unique id, in which the client encodes the ms since the beginning of the month (`ariane.model.ids`).
That time depends on the client's clock and time zone, so it is not exact, but every record of the message has the same id. The id
does not contain the month: it is the latest month for which the id is at most `MAX_AHEAD_MS` younger than the row, by the broker's
time.
"""

from __future__ import annotations

import re
import zlib
from datetime import UTC, datetime

BUCKET_MINUTES = 10
BUCKET_MS = BUCKET_MINUTES * 60_000
UNTIMED_BUCKETS = 16  # for ids without a time

# Maximum by which the time of an id may be ahead of the broker's: clients count from midnight of their own time zone (up to 14
# hours), and their clocks may be fast.
MAX_AHEAD_MS = 15 * 3_600_000
CANDIDATE_MONTHS = 3  # this month and two earlier ones: an id of the 31st may be two beginnings of a month old
MAX_COUNTED_MS = 32 * 86_400_000  # a month, and a day for a process that has not noticed its end

UNIQUE_ID = re.compile(r"(?:[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})")


def bucket_of_time(ms: int) -> str:
    """Return the bucket of an instant, in ms since the epoch."""
    return f"{datetime.fromtimestamp(ms // BUCKET_MS * BUCKET_MS / 1000, UTC):%Y-%m-%dT%H%M}"


def bucket_start_ms(bucket: str) -> int | None:
    """Return the start of a bucket, in ms since the epoch; None for buckets without a time."""
    if len(bucket) != len("2026-11-21T1020"):
        return None
    try:
        # Called for each file of a table: strptime takes six times as long.
        return int(datetime.fromisoformat(bucket).replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return None


def bucket_of_id(message_id: str, near_ms: int) -> str:
    """Return the bucket of a message.

    Args:
        message_id: unique id of the message.
        near_ms: broker time at which anything about the message was stored, ms since the epoch; determines the month.
    """
    counted_ms = int(message_id[-12:-4], 16) if UNIQUE_ID.fullmatch(message_id) else None
    latest_ms = near_ms + MAX_AHEAD_MS
    if counted_ms is not None and counted_ms <= MAX_COUNTED_MS:
        # The latest month that is not too far ahead: an id cannot be much younger than a record of its message.
        candidates = (month_ms + counted_ms for month_ms in _month_starts_ms(latest_ms))
        return bucket_of_time(max(ms for ms in candidates if ms <= latest_ms))
    return untimed_bucket(message_id)


def untimed_bucket(message_id: str) -> str:
    """Return the bucket of a message whose id contains no time: several ones, because a bucket is computed as a whole."""
    return f"unknown-{zlib.crc32(message_id.encode()) % UNTIMED_BUCKETS:02d}"


def candidate_buckets(message_id: str, since_ms: int, until_ms: int) -> set[str]:
    """Return every bucket that can hold rows of a message which were stored between two instants."""
    # One instant per day is enough: the result changes only with the month.
    days = range((until_ms - since_ms) // 86_400_000 + 2)
    return {bucket_of_id(message_id, min(since_ms + day * 86_400_000, until_ms)) for day in days}


def _month_starts_ms(latest_ms: int) -> list[int]:
    """Return the starts (UTC) of an instant's month and of the preceding ones, in ms."""
    latest = datetime.fromtimestamp(latest_ms / 1000, UTC)
    month = latest.year * 12 + latest.month - 1
    return [
        int(datetime((month - back) // 12, (month - back) % 12 + 1, 1, tzinfo=UTC).timestamp() * 1000)
        for back in range(CANDIDATE_MONTHS)
    ]

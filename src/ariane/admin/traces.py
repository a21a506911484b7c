"""Where is my message? Journeys by key or id, and the timeline of what happened to it. Reads Parquet, never Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from ariane.admin import asking, published
from ariane.errors import StoreError
from ariane.tables import JOURNEYS

STAGES = ("send failed", "sent", "stored", "delivered", "consumed")


class Found(NamedTuple):
    """Journeys that match, as rows with the columns of JOURNEYS. `as_of`: store time of the newest trace in the table."""

    rows: list[dict[str, Any]]
    as_of: datetime | None


class Moment(NamedTuple):
    """One thing that happened to a message, or to a delivery of it."""

    at: datetime
    what: str
    where: str | None
    group: str | None
    message_id: str
    keys: str | None
    tags: str | None
    cost: timedelta | None
    note: str


def find(home: Path, *, key: str | None = None, message_id: str | None = None) -> Found:
    """Journeys of the messages with a business key, or with an id (unique or offset id), in HOME of the pipeline.

    StoreError when nothing was published there yet.
    """
    if (key is None) == (message_id is None):
        raise ValueError("give a key or a message id")
    version = published.current(home, JOURNEYS)
    if version is None:
        raise StoreError(f"no journeys in {home} yet: run `ariane pipeline run trace --home {home} --once`")
    if key is not None:
        condition, value = "list_contains(string_split(keys, ' '), $1)", key
    else:
        assert message_id is not None
        condition, value = "message_id = $1 OR offset_message_id = $1", message_id
    with asking.asked(home, asking.whole(JOURNEYS)) as sql:
        rows = asking.rows(sql, f"SELECT * FROM journeys WHERE {condition}", [value])
    return Found(rows, _time(version.as_of_ms))


def timeline(rows: Iterable[Mapping[str, Any]]) -> list[Moment]:
    """What happened, in the order of the clocks that noted it; what has one time, in the order that it must have had."""
    moments: dict[Moment, None] = {}
    for row in rows:
        for moment in (*_send(row), *_deliveries(row)):
            moments[moment] = None
    return sorted(
        moments,
        key=lambda moment: (moment.at, STAGES.index(moment.what.split(":")[0]), moment.message_id, moment.group or ""),
    )


def _send(row: Mapping[str, Any]) -> Iterable[Moment]:
    if row["sent_at"] is None:
        return
    about = (row["message_id"], row["keys"], row["tags"])
    cost = _ms(row["send_cost_ms"])
    what = "sent" if row["sent_ok"] else "send failed"
    note = f"{row['sends']} sends" if row["sends"] and row["sends"] > 1 else ""
    yield Moment(row["sent_at"], what, row["producer_host"], row["producer_group"], *about, cost, note)
    if row["stored_at"] is not None:
        yield Moment(row["stored_at"], "stored", row["store_host"], None, *about, None, row["offset_message_id"] or "")


def _deliveries(row: Mapping[str, Any]) -> Iterable[Moment]:
    if row["delivered_at"] is None:
        return
    about = (row["message_id"], row["keys"], row["tags"])
    group, consumer = row["consumer_group"], row["consumer_host"]
    note = "before it was sent: the clocks of the two hosts differ" if row["clock_skew"] else ""
    yield Moment(row["delivered_at"], "delivered", consumer, group, *about, _ms(row["queueing_ms"]), note)
    if row["consumed_at"] is not None:
        note = f"{row['attempts']} attempts" if row["attempts"] > 1 else ""
        what = "consumed" if row["result"] == "success" else f"consumed: {row['result']}"
        yield Moment(row["consumed_at"], what, consumer, group, *about, _ms(row["consume_cost_ms"]), note)


def _ms(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(milliseconds=value)


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)

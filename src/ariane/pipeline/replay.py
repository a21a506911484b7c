"""Resends a DataFrame of messages and returns the results as a DataFrame; `ariane.cluster.messages.replay` does the sending.

    result = replay_frame(archive.where("tags = 'paid'"), "127.0.0.1:9876", Path("result.parquet"), topic="orders-again")

The driver collects the rows one partition at a time and sends them at the requested rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.settings import ClientSettings
from ariane.cluster.messages.replay import RATE, OriginalMessage, RecordId
from ariane.errors import ConfigError
from ariane.reports.replay.replay_result import replay_into
from ariane.reports.replay.replay_source import COLUMNS, FETCH_ROWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


def replay_frame(
    frame: DataFrame,
    namesrv: str,
    result: Path,
    *,
    topic: str | None = None,
    rate: float = RATE,
    client: ClientSettings | None = None,
) -> DataFrame:
    """Resend messages and return one row per message that was ever sent with this `result` file.

    Messages that an earlier call with the same file has sent are skipped.

    Args:
        frame: messages with COLUMNS, as in the archive or in format("rocketmq"); its order is preserved if it has one.
        namesrv: name server addresses, separated by ';'.
        result: a .parquet file for the outcome of each message.
        topic: target topic; None: the original topic of each dead letter.
        rate: messages per second.
        client: settings of the producer.

    Raises:
        ConfigError: `frame` lacks columns, or `result` is not a .parquet file.
    """
    if missing := [name for name in COLUMNS if name not in frame.columns]:
        raise ConfigError("frame", ", ".join(frame.columns), f"it lacks {', '.join(missing)}")
    if result.suffix != ".parquet":
        raise ConfigError("result", str(result), "expected a file name that ends in .parquet")
    rows = frame.select(*COLUMNS).toLocalIterator()

    async def work() -> None:
        async with ClientInstance(namesrv, client) as instance:
            await replay_into(result, _originals(rows), instance, topic=topic, rate=rate)

    # A separate thread, because a notebook already runs an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work()).result()
    return frame.sparkSession.read.parquet(str(result))


async def _originals(rows: Iterator[Row]) -> AsyncIterator[OriginalMessage]:
    """Yield the rows as messages. Spark is awaited in a thread, so that heartbeats continue."""
    while some := await asyncio.to_thread(lambda: list(islice(rows, FETCH_ROWS))):
        for row in some:
            record_id = RecordId(row["topic"], row["broker"], row["queue_id"], row["queue_offset"])
            # The source and the archive contain decompressed bodies.
            yield OriginalMessage(
                record_id, row["message_id"], row["properties"] or {}, bytes(row["body"] or b""), row["flag"] or 0, 0
            )

"""A DataFrame of messages, sent once more: the result is a DataFrame too. The sending itself is `ariane.cluster.replay`.

    result = replayed(archive.where("tags = 'paid'"), "127.0.0.1:9876", Path("result.parquet"), topic="orders-again")

The rows come to the driver, a partition at a time, and go out from there at the rate that is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ariane.client.client_instance import ClientInstance
from ariane.client.settings import ClientSettings
from ariane.cluster.replay import RATE, OriginalMessage, RecordId
from ariane.errors import ConfigError
from ariane.reports.replay_result import replay_into
from ariane.reports.replay_source import COLUMNS, ROWS_AT_ONCE

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
    """One row per message that was ever sent with this `result` (a .parquet file): what became of it. What an earlier call
    sent is not sent again.

    `frame` has the columns of the archive or of format("rocketmq"), as far as they are named in COLUMNS; its order is kept
    where it has one. `topic` None: dead letters to where they were first sent.
    """
    if missing := [name for name in COLUMNS if name not in frame.columns]:
        raise ConfigError("frame", ", ".join(frame.columns), f"it lacks {', '.join(missing)}")
    if result.suffix != ".parquet":
        raise ConfigError("result", str(result), "name a file that ends in .parquet")
    rows = frame.select(*COLUMNS).toLocalIterator()

    async def work() -> None:
        async with ClientInstance(namesrv, client) as instance:
            await replay_into(result, _originals(rows), instance, topic=topic, rate=rate)

    # In a thread of its own: a notebook has a loop that runs already.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work()).result()
    return frame.sparkSession.read.parquet(str(result))


async def _originals(rows: Iterator[Row]) -> AsyncIterator[OriginalMessage]:
    """Spark is waited for beside the loop, whose heartbeats go on."""
    while some := await asyncio.to_thread(lambda: list(islice(rows, ROWS_AT_ONCE))):
        for row in some:
            place = RecordId(row["topic"], row["broker"], row["queue_id"], row["queue_offset"])
            # The source and the archive give bodies decompressed.
            yield OriginalMessage(
                place, row["message_id"], row["properties"] or {}, bytes(row["body"] or b""), row["flag"] or 0, 0
            )

"""Whether much is to be read, before a Spark session starts: its JVM compiles differently for a backlog than for a few messages."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ariane.errors import ArianeError
from ariane.pipeline.jobs import PipelineJob, TopicSource
from ariane.spark.read import offset_ranges
from ariane.spark.read.source_options import parse
from ariane.tables.table_home import Home
from ariane.tables.table_store import open_store

log = logging.getLogger("ariane.pipeline")


def has_backlog(job: PipelineJob, options: Mapping[str, str], home: Home) -> bool:
    """Return whether a source of the job has more to read than a whole micro-batch takes.

    A server that does not respond means no: the queries wait for it and report it.

    Args:
        job: its sources, and their limits of a micro-batch.
        options: options of format("rocketmq") for all sources. Other limits of a micro-batch are ignored.
        home: directory of the tables, and of the checkpoints.
    """
    shared = {name: value for name, value in options.items() if not name.lower().endswith("pertrigger")}
    try:
        return any(_exceeds_one_batch(source, shared, home) for source in job.sources if source.limits)
    except ArianeError as error:
        log.info("Could not estimate the backlog: %s", error)
        return False


def _exceeds_one_batch(source: TopicSource, options: Mapping[str, str], home: Home) -> bool:
    from ariane.spark.read.micro_batches import StreamReader

    # One attempt: the queries have retries of their own.
    reader = StreamReader(parse({**options, **source.options, **source.limits, "retries": "0"}), [])
    start = _last_offset(open_store(home).local_dir / "checkpoint" / source.name) or reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    latest = (reader.reportLatestOffset() or {}).get("latest", {})
    reached = offset_ranges.end_positions(end)
    return any(reached.get(queue, 0) < last for queue, last in offset_ranges.positions_from_json(latest).items())


def _last_offset(checkpoint: Path) -> dict[str, Any] | None:
    """Return the end of the last micro-batch that a checkpoint of one source contains; None without a micro-batch."""
    batches = [path for path in checkpoint.glob("offsets/*") if path.name.isdigit()]
    if not batches:
        return None
    offset: dict[str, Any] = json.loads(max(batches, key=lambda path: int(path.name)).read_text().splitlines()[-1])
    return offset

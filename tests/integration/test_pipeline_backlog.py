"""What the pipeline reads from a broker in its own process: the estimate of a backlog, and the messages of a micro-batch."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import pyarrow as pa

from ariane.client import Producer
from ariane.cluster.admin import Admin
from ariane.model.message import Message, MessageQueue
from ariane.pipeline import backlog, jobs
from ariane.pipeline.publishing import decoded_batches
from ariane.spark.read.micro_batches import StreamReader
from ariane.spark.read.offset_ranges import OffsetRange
from ariane.spark.read.source_options import parse
from ariane.testing import LocalCluster


def test_a_backlog_is_what_does_not_fit_into_one_micro_batch(tmp_path: Path) -> None:
    def job(limit: int) -> jobs.PipelineJob:
        limits = {"maxOffsetsPerTrigger": str(limit)}
        return jobs.PipelineJob("j", (jobs.TRACES._replace(options={"topic": "T"}, limits=limits),), ())

    async def fill(namesrv: str) -> None:
        async with Admin(namesrv) as admin, Producer(namesrv, "P") as producer:
            await admin.create_topic("T", queues=1)
            for number in range(20):
                await producer.send(Message(topic="T", body=b"%d" % number))

    with LocalCluster() as servers:
        asyncio.run(fill(servers.namesrv))
        options = {"namesrv": servers.namesrv, "MaxOffsetsPerTrigger": "1"}  # a choice of the user, not a backlog
        assert backlog.has_backlog(job(19), options, tmp_path)
        assert not backlog.has_backlog(job(20), options, tmp_path)

        for source in (jobs.TRACES, jobs.RECORDS):
            columns = [column.partition(" ")[0] for column in re.sub("<.*?>", "", source.schema).split(", ")]
            reader = StreamReader(parse({"namesrv": servers.namesrv, "topic": "T"}), columns)
            queue = MessageQueue("T", "broker-a", 0)
            ranges = [OffsetRange(queue, 3, 5), OffsetRange(queue, 19, 20)]
            rows = pa.Table.from_batches(decoded_batches.read_ranges(reader, ranges))
            assert rows.column_names == columns
            assert rows["queue_offset"].to_pylist() == [3, 4, 19]
            assert list(decoded_batches.read_ranges(reader, [])) == []

        offsets = tmp_path / "checkpoint" / "traces" / "offsets"
        offsets.mkdir(parents=True)
        for batch, end in ((9, 3), (10, 15)):
            offset = {"from": {"T": {"broker-a": {"0": 0}}}, "to": {"T": {"broker-a": {"0": end}}}}
            (offsets / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
            (offsets / f".{batch}.crc").write_bytes(b"\xff")
        assert not backlog.has_backlog(job(5), options, tmp_path)
        assert backlog.has_backlog(job(4), options, tmp_path)
    assert not backlog.has_backlog(job(4), {"namesrv": "127.0.0.1:1"}, tmp_path), "no server"

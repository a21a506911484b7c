"""The estimate of a backlog before a Spark session starts, at a broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

from ariane.client import Producer
from ariane.cluster.admin import Admin
from ariane.model.message import Message
from ariane.pipeline import backlog, jobs
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

        offsets = tmp_path / "checkpoint" / "traces" / "offsets"
        offsets.mkdir(parents=True)
        for batch, end in ((9, 3), (10, 15)):
            offset = {"from": {"T": {"broker-a": {"0": 0}}}, "to": {"T": {"broker-a": {"0": end}}}}
            (offsets / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
            (offsets / f".{batch}.crc").write_bytes(b"\xff")
        assert not backlog.has_backlog(job(5), options, tmp_path)
        assert backlog.has_backlog(job(4), options, tmp_path)
    assert not backlog.has_backlog(job(4), {"namesrv": "127.0.0.1:1"}, tmp_path), "no server"

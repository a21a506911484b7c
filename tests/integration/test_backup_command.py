"""A broker is backed up while it is used, restored, and compared with the original message by message and offset by offset."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from typer.testing import CliRunner

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.cli.main import app
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.records.record import Record
from ariane.protocol.requests.admin import CreateTopic
from ariane.protocol.requests.messaging import QueryConsumerOffset, QueueRef, SendMessage, UpdateConsumerOffset
from ariane.store.check.reader import read_log

ROUNDS, QUEUES = 4, 2


def settings(root: Path) -> BrokerConfig:
    return BrokerConfig(
        broker_name="broker-a", broker_ip1="127.0.0.1", bind_address="127.0.0.1", listen_port=0, namesrv_addr="",
        mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=20_000, flush_consumer_offset_interval=50,
        store_path_root_dir=str(root),
    )  # fmt: skip


def command(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def records(root: Path, end: int) -> dict[int, Record]:
    """Return the records of a store below a log offset."""
    found = [record for record in read_log(str(root)) if isinstance(record, Record)]
    return {record.offset: record for record in found if record.offset < end}


async def use(peers: ConnectionPool, address: str, topics: list[str], sent: list[str]) -> None:
    """Create topics, send to them and commit offsets, until cancelled."""
    for round_number in range(1 << 30):
        if round_number % 20 == 0:
            topics.append(f"topic{len(topics)}")
            await peers.request_ok(
                address, RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic(topics[-1], "TBW102", 2, 2, 6)
            )
        topic, queue_id, body = topics[-1], round_number % QUEUES, f"{round_number} of {topics[-1]}"
        header = SendMessage("P", topic, "TBW102", QUEUES, queue_id, 0, 1, 0, "")
        stored = await peers.request_ok(address, RequestCode.SEND_MESSAGE_V2, header, body.encode())
        sent.append(body)
        offset = int(stored.field_map()["queueOffset"]) + 1
        commit = UpdateConsumerOffset("G", topic, queue_id, offset)
        await peers.request_ok(address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)


async def back_up_and_restore(tmp_path: Path) -> None:
    original, restored, url = tmp_path / "store", tmp_path / "restored", tmp_path / "backups"
    topics: list[str] = []
    sent: list[str] = []
    known = 0
    async with ConnectionPool() as peers, Broker(settings(original)) as broker:
        user = asyncio.create_task(use(peers, broker.addr, topics, sent))
        for _ in range(ROUNDS):
            while len(sent) < known + 300 and not user.done():
                await asyncio.sleep(0.01)
            known = len(sent)
            printed = await asyncio.to_thread(command, "backup", "create", original, url, "--retain", "2", "--json")
        outcome = json.loads(printed)
        assert not user.done(), user.exception()
        user.cancel()
        await asyncio.gather(user, return_exceptions=True)
    assert len(command("backup", "list", url).splitlines()) == 2
    assert "no faults" in command("backup", "check", url, "--all")
    assert outcome["written"] < outcome["bytes"], "finished files were copied again"

    command("restore", url, restored)
    async with ConnectionPool() as peers, Broker(settings(restored)) as broker:
        copies, originals = records(restored, outcome["log_end"]), records(original, outcome["log_end"])
        assert copies == originals
        assert {record.body.decode() for record in copies.values()} >= set(sent[:known])
        ends: dict[tuple[str, int], int] = {}
        for record in copies.values():
            ends[record.topic, record.queue_id] = record.queue_offset + 1
        for (topic, queue_id), end in ends.items():
            answer = await peers.request_ok(broker.addr, RequestCode.GET_MAX_OFFSET, QueueRef(topic, queue_id))
            assert answer.field_map()["offset"] == str(end)
            committed = await peers.request(
                broker.addr, RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset("G", topic, queue_id)
            )
            offset = int(committed.field_map().get("offset", 0))
            # Topics that were not used any more when the last backup began: their offsets were saved.
            assert offset == end if topic in topics[:3] else offset <= end


def test_a_restored_broker_has_each_message_and_offset_of_its_backup(tmp_path: Path):
    asyncio.run(back_up_and_restore(tmp_path))

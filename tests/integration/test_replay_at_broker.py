"""`ariane replay` against our broker: dead letters to their original topic, a dry run, a kill and the resumed run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ariane.client import ClientInstance, Producer
from ariane.cluster.messages.replay import OriginalMessage
from ariane.model import ids
from ariane.model.message import Message
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.messaging import ConsumerSendMsgBack
from ariane.reports.replay import replay_source
from ariane.reports.replay.replay_source import ReplayFilter
from ariane.testing import LocalCluster

DLQ = "%DLQ%G"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "servers") as started:
        yield started


async def dead_letters(servers: LocalCluster, count: int) -> None:
    """Create `count` dead letters of topic orders in group G."""
    async with ClientInstance(servers.namesrv) as instance, Producer(instance, "P") as producer:
        for number in range(count):
            message = Message(
                topic="orders", body=f"{number}".encode(), keys=(f"order-{number}",), tags="new",
                properties={"color": "red", "__SHARDINGKEY": f"{number % 3}"},
            )  # fmt: skip
            sent = await producer.send(message)
            _, offset = ids.parse_offset_message_id(sent.offset_message_id)
            header = ConsumerSendMsgBack(offset, "G", -1, sent.message_id, "orders", False, 16)
            await instance.peers.request_ok(servers.broker.addr, RequestCode.CONSUMER_SEND_MSG_BACK, header)


async def stored(servers: LocalCluster, topic: str) -> list[OriginalMessage]:
    async with ClientInstance(servers.namesrv) as instance:
        return [
            message
            async for message in replay_source.topic_messages(
                instance.peers, instance.name_servers, ReplayFilter(topic)
            )
        ]


def command(servers: LocalCluster, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "ariane.cli", "replay", "-n", servers.namesrv, *arguments]


def run(servers: LocalCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(servers, *arguments), capture_output=True, text=True, timeout=60, check=False)


def test_dead_letters_are_replayed_once_and_a_dry_run_sends_nothing(servers: LocalCluster, tmp_path: Path) -> None:
    asyncio.run(dead_letters(servers, 5))
    result = tmp_path / "result.jsonl"
    dry = run(servers, "--from-topic", DLQ, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "5 messages  →  orders" in dry.stdout
    assert "Nothing sent" in dry.stdout
    assert len(asyncio.run(stored(servers, "orders"))) == 5
    where = "cast(keys[7:] AS INTEGER) >= 2 AND properties['color'] = 'red'"
    some = run(servers, "--from-topic", DLQ, "--where", where, "--result", str(result))
    assert (some.returncode, some.stdout) == (0, f"3 sent, 0 failed, 0 unsent; outcomes in {result}\n"), some.stderr
    rest = run(servers, "--from-topic", DLQ, "--result", str(result), "--rate", "50/s")
    assert rest.stdout.startswith("2 sent, 0 failed, 0 unsent, 3 already sent"), rest.stderr
    rows = [json.loads(line) for line in result.read_text().splitlines()]
    orders = asyncio.run(stored(servers, "orders"))
    repeated = {item.message_id: item for item in orders if "REPLAYED_FROM" in item.properties}
    assert len(orders) == 10
    assert {row["message_id"] for row in rows} == set(repeated)
    for row in rows:
        item = repeated[row["message_id"]]
        assert item.record_id == ("orders", row["broker"], row["queue_id"], row["queue_offset"])
        assert set(item.properties) == {
            "KEYS",
            "TAGS",
            "UNIQ_KEY",
            "CLUSTER",
            "color",
            "__SHARDINGKEY",
            "REPLAYED_FROM",
        }
        origin = f"{DLQ}/broker-a/0/{row['source_queue_offset']}/{row['source_message_id']}"
        assert item.properties["REPLAYED_FROM"] == origin
    assert sorted(item.body for item in repeated.values()) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_topic_replayed_to_itself_is_sent_once(servers: LocalCluster, tmp_path: Path) -> None:
    """Each queue is read only up to its end at the time of the first send."""
    asyncio.run(dead_letters(servers, 12))
    done = run(
        servers, "--from-topic", "orders", "--topic", "orders", "--rate", "20/s", "--result", str(tmp_path / "r.jsonl")
    )
    assert done.stdout.startswith("12 sent"), done.stderr
    assert len(asyncio.run(stored(servers, "orders"))) == 24


def test_a_killed_replay_resumes_with_the_remaining_messages(servers: LocalCluster, tmp_path: Path) -> None:
    asyncio.run(dead_letters(servers, 60))
    result = tmp_path / "result.parquet"
    journal = tmp_path / "result.parquet.journal"
    arguments = ("--from-topic", DLQ, "--result", str(result), "--rate")
    killed = subprocess.Popen(command(servers, *arguments, "20/s"))
    try:
        deadline = time.monotonic() + 60
        while not journal.exists() or journal.read_text().count('"ok"') < 10:
            assert time.monotonic() < deadline, "the replay sends nothing"
            time.sleep(0.01)
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait(10)
    assert not result.exists()
    assert run(servers, *arguments, "1000/s").returncode == 0
    replayed = [message for message in asyncio.run(stored(servers, "orders")) if "REPLAYED_FROM" in message.properties]
    assert {message.body for message in replayed} == {f"{number}".encode() for number in range(60)}
    # Messages in flight at the kill may be stored twice, with one id.
    assert len({message.message_id for message in replayed}) == 60
    assert run(servers, *arguments, "1000/s").stdout.startswith("0 sent, 0 failed, 0 unsent, 60 already sent")


def test_invalid_replays_are_reported(servers: LocalCluster, tmp_path: Path) -> None:
    asyncio.run(dead_letters(servers, 1))
    result = str(tmp_path / "r.jsonl")
    missing = run(servers, "--from-topic", DLQ, "--topic", "nowhere", "--result", result)
    assert (missing.returncode, missing.stderr) == (
        1,
        "Error: --topic = 'nowhere': topic does not exist; create it first\n",
    )
    unknown = run(servers, "--from-topic", "%DLQ%H", "--result", result)
    assert "no route for topic %DLQ%H" in unknown.stderr
    whereto = run(servers, "--from-topic", "orders", "--result", result)
    assert "have no original topic" in whereto.stderr
    empty = run(servers, "--from-topic", DLQ, "--key", "none", "--result", result)
    assert empty.stderr.startswith("Error: no message matches --from,")
    away = subprocess.run(
        [sys.executable, "-m", "ariane.cli", "replay", "-n", "127.0.0.1:1", "--from-topic", DLQ, "--result", result],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (away.returncode, "127.0.0.1:1" in away.stderr) == (1, True)
    assert not list(tmp_path.glob("r.jsonl*")), "nothing was to be kept"

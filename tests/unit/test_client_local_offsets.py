"""Offsets file of a broadcasting consumer: Java's format, the previous version, unreadable files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from client_script import QUEUE, Script, instance

from ariane.client.consuming.local_offsets import LocalOffsets, offsets_path, read, write
from ariane.errors import ConfigError
from ariane.model.message import MessageQueue

OTHER = MessageQueue("T", "a", 1)
JAVAS = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"a",
\t\t\t"queueId":0,
\t\t\t"topic":"T"
\t\t}:5,{
\t\t\t"brokerName":"a",
\t\t\t"queueId":1,
\t\t\t"topic":"T"
\t\t}:7
\t}
}"""


def test_the_default_path_equals_javas() -> None:
    assert (
        offsets_path("", "10.0.0.1@x", "g") == Path.home() / ".rocketmq_offsets" / "10.0.0.1@x" / "g" / "offsets.json"
    )
    assert offsets_path("d", "c", "g") == Path("d/c/g/offsets.json")


def test_a_java_file_is_read_and_written_files_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "c" / "offsets.json"
    assert read(path) == {}
    write(path, {QUEUE: 1})
    path.write_bytes(JAVAS)
    assert read(path) == {QUEUE: 5, OTHER: 7}
    write(path, {QUEUE: 6})
    assert read(path) == {QUEUE: 6}
    assert read(path.with_name("offsets.json.bak")) == {QUEUE: 5, OTHER: 7}


@pytest.mark.parametrize("text", [None, b"", b'{"offsetTable":{{"brok', b"[]", b'{"offsetTable":{"x":1}}'])
def test_the_previous_file_is_read_if_the_newest_is_missing_or_corrupt(tmp_path: Path, text: bytes | None) -> None:
    path = tmp_path / "offsets.json"
    write(path, {QUEUE: 1})
    write(path, {QUEUE: 2})
    path.unlink()
    if text is not None:
        path.write_bytes(text)
    assert read(path) == {QUEUE: 1}


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_bytes(b"{")
    with pytest.raises(ConfigError, match="start at the start position"):
        read(path)


def test_offsets_of_unassigned_queues_are_retained(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    write(path, {OTHER: 7})

    async def play() -> None:
        peers = Script({})
        offsets = LocalOffsets(peers, instance(peers).routes, "g", timeout_ms=1, path=path)
        await offsets.load()
        assert await offsets.start_offset(OTHER, "last") == 7
        offsets.update(QUEUE, 3)
        await offsets.commit([QUEUE])
        assert read(path) == {QUEUE: 3, OTHER: 7}
        changed = path.stat().st_mtime_ns
        await offsets.commit([QUEUE])
        assert path.stat().st_mtime_ns == changed
        assert peers.asked == []

    asyncio.run(play())


def test_a_failed_write_is_repeated_by_the_next_commit(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")

    async def play() -> None:
        peers = Script({})
        offsets = LocalOffsets(peers, instance(peers).routes, "g", timeout_ms=1, path=blocked / "offsets.json")
        offsets.update(QUEUE, 3)
        await offsets.commit([QUEUE])
        assert await offsets.committed(QUEUE) is None
        blocked.unlink()
        await offsets.commit([QUEUE])
        assert read(blocked / "offsets.json") == {QUEUE: 3}

    asyncio.run(play())

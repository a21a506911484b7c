"""Attributes of topics at a broker: stored, returned, kept by other changes, and changed by our `mqadmin`."""

from __future__ import annotations

import json
from pathlib import Path

from test_pop import Client, against_broker, config

from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.admin import CreateTopic, TopicRef

FIFO = {"message.type": "FIFO"}


async def put(client: Client, attributes: str | None, *, queues: int = 4) -> Command:
    header = CreateTopic("A", "TBW102", queues, queues, 6, "SINGLE_TAG", 0, False, attributes)
    return await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


async def attributes(client: Client) -> tuple[object, object]:
    """Return the attributes that GET_TOPIC_CONFIG and GET_ALL_TOPIC_CONFIG return."""
    topic = json.loads((await client.call(RequestCode.GET_TOPIC_CONFIG, TopicRef("A"))).body)
    table = json.loads((await client.call(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
    return topic["attributes"], table["topicConfigTable"]["A"].get("attributes")


def test_attributes_are_stored_and_kept_by_changes_that_do_not_name_them(tmp_path: Path) -> None:
    async def before(client: Client) -> None:
        assert (await put(client, "+message.type=FIFO")).code == 0
        assert await attributes(client) == (FIFO, FIFO)
        assert (await put(client, None, queues=8)).code == 0
        assert await attributes(client) == (FIFO, FIFO)

    async def after(client: Client) -> None:
        assert await attributes(client) == (FIFO, FIFO)
        assert (await put(client, "-message.type")).code == 0
        assert await attributes(client) == ({}, None), "4.9.4 prints no attributes"

    against_broker(config(tmp_path), before)
    document = json.loads((tmp_path / "config" / "topics.json").read_text())
    assert document["topicConfigTable"]["A"] == {
        "attributes": FIFO, "order": False, "perm": 6, "readQueueNums": 8, "topicFilterType": "SINGLE_TAG", "topicName": "A",
        "topicSysFlag": 0, "writeQueueNums": 8,
    }  # fmt: skip
    against_broker(config(tmp_path), after, after_removal)
    assert "attributes" not in (tmp_path / "config" / "topics.json").read_text()


async def after_removal(client: Client) -> None:
    assert await attributes(client) == ({}, None)


def test_unknown_attributes_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        assert (await put(client, "+message.type=FIFO")).code == 0
        for text, remark in (
            ("+nope=1", "unsupported key: nope"),
            ("+message.type=X", "value is not in set: [UNSPECIFIED, TRANSACTION, FIFO, MIXED, DELAY, NORMAL]"),
            ("nope", "delete attribute format is wrong: nope; expected -key"),
        ):
            answer = await put(client, text, queues=9)
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
        topic = json.loads((await client.call(RequestCode.GET_TOPIC_CONFIG, TopicRef("A"))).body)
        assert (topic["attributes"], topic["readQueueNums"]) == (FIFO, 4)

    against_broker(config(tmp_path), work)


def test_a_deleted_topic_loses_its_attributes(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        assert (await put(client, "+message.type=FIFO")).code == 0
        assert (await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRef("A"))).code == 0
        assert (await put(client, None)).code == 0
        assert await attributes(client) == ({}, None)

    against_broker(config(tmp_path), work)

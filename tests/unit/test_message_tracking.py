"""States of a message in consumer groups, inferred from what scripted brokers respond."""

from __future__ import annotations

import asyncio

from client_script import message

from ariane.cluster.admin import Admin
from ariane.cluster.messages.message_tracking import MessageTrack, TrackState
from ariane.errors import ReplyError
from ariane.model.message import MessageQueue
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.admin import ClientConnection, ConsumerConnection
from ariane.protocol.requests.brokers import GroupList
from ariane.protocol.requests.clients import SubscriptionData, WireQueue
from ariane.protocol.requests.stats import ConsumeStats, GroupOffset
from scripted_peers import MASTER, NAMES, OTHER, ScriptedPeers

QUEUE = MessageQueue("T", "broker-a", 0)


def track(message_model: str | int | None, consumer_offset: int) -> MessageTrack:
    client = ClientConnection("10.0.0.7:1", "c1", "JAVA", 399)
    connection = ConsumerConnection(
        (client,), "CONSUME_FROM_LAST_OFFSET", "CONSUME_PASSIVELY", message_model, {"T": SubscriptionData(topic="T")}
    )
    offsets = {fastjson.write(WireQueue("broker-a", 0, "T")).decode(): GroupOffset(9, consumer_offset, 0)}
    script = {
        (MASTER, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO): GroupList(("G",)),
        (OTHER, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO): GroupList(()),
        (OTHER, RequestCode.GET_CONSUMER_CONNECTION_LIST): ReplyError(
            ResponseCode.CONSUMER_NOT_ONLINE, "offline", OTHER
        ),
        (MASTER, RequestCode.GET_CONSUMER_CONNECTION_LIST): connection,
        (MASTER, RequestCode.GET_CONSUME_STATS): ConsumeStats(0.0, offsets),
    }

    async def run() -> MessageTrack:
        async with Admin(NAMES, peers=ScriptedPeers(script)) as admin:
            return (await admin.track(message(5, queue=QUEUE))).tracks[0]

    return asyncio.run(run())


def test_the_offset_of_a_group_decides_whether_it_has_consumed_a_message() -> None:
    assert track("CLUSTERING", 6) == MessageTrack("G", TrackState.CONSUMED)
    assert track("CLUSTERING", 5) == MessageTrack("G", TrackState.NOT_CONSUME_YET)


def test_the_state_in_a_broadcasting_group_is_unknown() -> None:
    # Its clients store their offsets themselves: an offset of the broker, for example of earlier clients, says nothing.
    for model in ("BROADCASTING", 0):
        for consumer_offset in (0, 6):
            assert track(model, consumer_offset) == MessageTrack(
                "G", TrackState.UNKNOWN, "the group broadcasts: each client stores its offsets itself"
            )

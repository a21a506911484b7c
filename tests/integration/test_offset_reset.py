"""A reset moves a connected group although some of its queues are empty, and it has committed no offset there."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ariane import Admin, Message, Producer, PushConsumer, ReceivedMessage
from ariane.cluster.groups.offset_admin import OffsetTarget
from ariane.testing import LocalCluster


def test_a_connected_group_with_empty_queues_consumes_again(tmp_path: Path) -> None:
    async def run(namesrv: str) -> None:
        received: asyncio.Queue[bytes] = asyncio.Queue()

        async def listener(messages: list[ReceivedMessage]) -> None:
            for message in messages:
                received.put_nowait(message.body)

        async with Admin(namesrv) as admin, Producer(namesrv, "shop") as producer:
            await admin.create_topic("orders", queues=4)
            await producer.send(Message(topic="orders", body=b"created"))
            async with PushConsumer(namesrv, "billing", {"orders": "*"}, listener, start="first"):
                assert await received.get() == b"created"
                while (await admin.group_lag("billing", "orders")).total != 0:  # the client commits every five seconds
                    await asyncio.sleep(0.1)
                result = await admin.reset_offsets("billing", "orders", OffsetTarget(0))
                assert result.online
                assert [queue.new_offset for queue in result.queues] == [0, 0, 0, 0]
                assert await received.get() == b"created"

    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        asyncio.run(asyncio.wait_for(run(namesrv), 120))

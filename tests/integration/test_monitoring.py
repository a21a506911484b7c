"""`mqadmin startMonitoring`: rounds with the lag of groups, different subscriptions, and offsets that brokers moved."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from pathlib import Path

from ariane import Message, Producer, PushConsumer
from ariane.cli.mqadmin.commands import monitor_commands
from ariane.cli.output.json_output import to_builtins
from ariane.cluster.admin import Admin
from ariane.testing import LocalCluster


def test_rounds_show_groups_and_new_events(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(monitor_commands, "ROUND_S", 0.05)

    async def run(namesrv: str) -> None:
        consumed = asyncio.Event()

        async def listener(messages: list[object]) -> None:
            consumed.set()

        async with (
            Admin(namesrv) as admin,
            Producer(namesrv, "shop") as producer,
            PushConsumer(namesrv, "billing", {"orders": "*"}, listener, start="first"),
        ):
            await producer.send(Message(topic="orders", body=b"1"))
            await asyncio.wait_for(consumed.wait(), 60)
            queue = (await admin.locate_queues("orders"))[0]
            # A pull from an offset that does not exist: the broker moves the group and stores an event.
            await admin.pull(queue, 1_000_000, group="billing")
            rounds = monitor_commands.start_monitoring(admin, Namespace())
            first = await anext(rounds)
            assert to_builtins(first.data)["movedOffsets"] == []
            await admin.pull(queue, 2_000_000, group="billing")
            async for output in rounds:
                data = to_builtins(output.data)
                (group,) = data["groups"]
                if data["movedOffsets"]:
                    break
            await rounds.aclose()
        assert (group["group"], group["clients"]) == ("billing", 1)
        assert group["inconsistent"] == group["blocked"] == group["unavailable"] == []
        (event,) = map(json.loads, data["movedOffsets"])
        assert (event["consumerGroup"], event["offsetRequest"]) == ("billing", 2_000_000)
        assert "[MONITOR] group=billing clients=1 lag=" in output.text
        assert '[MONITOR] offset moved: {"consumerGroup":"billing"' in output.text

    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        asyncio.run(asyncio.wait_for(run(namesrv), 120))

"""`ariane doctor` against running servers: a sound cluster, a stopped broker, and members with different subscriptions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from typer.testing import CliRunner

from ariane import PushConsumer, ReceivedMessage, ReconsumeLater
from ariane.cli import main
from ariane.client import ConsumerSettings
from ariane.cluster.admin import Admin
from ariane.cluster.diagnosis.findings import Finding
from ariane.testing import AsyncLocalCluster, LocalCluster

RUNNER = CliRunner()


def test_a_running_cluster_has_no_error(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        printed = RUNNER.invoke(main.app, ["doctor", "-n", namesrv])
        assert printed.exit_code == 0, printed.output
        assert "checked: name servers 1, brokers 1" in printed.output
        findings = json.loads(RUNNER.invoke(main.app, ["doctor", "-n", namesrv, "--json"]).output)
        assert [finding for finding in findings if finding["level"] == "error"] == []


def test_a_name_server_that_does_not_respond_is_an_error(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        printed = RUNNER.invoke(main.app, ["doctor", "-n", f"{namesrv};127.0.0.1:1"])
        assert printed.exit_code == 1
        assert "ERROR name servers: 127.0.0.1:1" in printed.output
        assert "fix: start it" in printed.output


def test_groups_are_counted_and_backlogs_and_dead_letters_are_found(tmp_path: Path) -> None:
    async def give_up(_: Sequence[ReceivedMessage]) -> None:
        raise ReconsumeLater("not yet")

    async def trouble(servers: AsyncLocalCluster) -> tuple[str, str, list[Finding]]:
        namesrv = servers.namesrv
        quick = ConsumerSettings(max_reconsume_times=0)
        async with Admin(namesrv) as admin:
            await admin.create_topic("orders")
            async with PushConsumer(namesrv, "billing", {"orders": "*"}, give_up, start="first", settings=quick):
                await servers.send("orders", b"refused")
                async with asyncio.timeout(60):
                    while not [finding for finding in await admin.diagnose() if finding.check == "dead letters"]:
                        await asyncio.sleep(0.1)
                online = await asyncio.to_thread(printed, namesrv)
            for _ in range(5):
                await servers.send("orders", b"pending")
            servers.clock.advance(timedelta(minutes=11))
            offline = await asyncio.to_thread(printed, namesrv)
            return online, offline, await admin.diagnose()

    def printed(namesrv: str) -> str:
        done = RUNNER.invoke(main.app, ["doctor", "-n", namesrv], env={"COLUMNS": "80"})
        assert done.exit_code == 0, done.output
        return done.output

    async def run() -> tuple[str, str, list[Finding]]:
        async with AsyncLocalCluster(tmp_path) as servers:
            return await trouble(servers)

    online, offline, findings = asyncio.run(run())
    assert "groups 1 (1 online)" in online
    assert "WARNING dead letters: billing" in online
    assert "backlog" not in online
    assert "groups 1 (0 online)" in offline
    (backlog,) = [finding for finding in findings if finding.check == "backlog"]
    assert backlog.subject == "billing"
    assert "no client is connected; most of all billing: 5 messages pending, the oldest for 11 min" in backlog.problem
    (letters,) = [finding for finding in findings if finding.check == "dead letters"]
    assert letters.problem.startswith("1 in the last hour, the last one ")
    assert letters.problem.endswith("; 1 dead letter stored")


def test_members_with_different_tags_are_an_error(tmp_path: Path) -> None:
    async def consume(messages: Sequence[ReceivedMessage]) -> None:
        pass

    async def find(namesrv: str) -> list[str]:
        async with Admin(namesrv) as admin:
            await admin.create_topic("orders")
            async with (
                PushConsumer(namesrv, "billing", {"orders": "A"}, consume),
                PushConsumer(namesrv, "billing", {"orders": "B"}, consume),
            ):
                for _ in range(300):
                    findings = [finding for finding in await admin.diagnose() if finding.check == "subscriptions"]
                    if findings:
                        return [finding.problem for finding in findings]
                    await asyncio.sleep(0.1)
        return []

    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        (problem,) = asyncio.run(find(namesrv))
        assert "orders A" in problem
        assert "orders B" in problem

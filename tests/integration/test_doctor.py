"""`ariane doctor` against running servers: a sound cluster, a stopped broker, and members with different subscriptions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from typer.testing import CliRunner

from ariane import PushConsumer, ReceivedMessage
from ariane.cli import main
from ariane.cluster.admin import Admin
from ariane.testing import LocalCluster

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

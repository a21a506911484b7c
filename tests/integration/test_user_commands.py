"""`ariane acl user` and `ariane acl policy`: every change by its effect on a signed request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from ariane.cli import main
from ariane.client import ClientInstance, ClientSettings, Credentials, Producer
from ariane.errors import ArianeError
from ariane.model.message import Message
from ariane.testing import LocalCluster

ROOT = {"ARIANE_ACCESS_KEY": "root", "ARIANE_SECRET_KEY": "root-secret", "COLUMNS": "200"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user='{"username":"root","password":"root-secret"}',
    ) as servers:
        yield servers


def run(cluster: LocalCluster, *words: str, status: int = 0) -> str:
    done = CliRunner().invoke(main.app, ["acl", *words, "-n", cluster.namesrv], env=ROOT)
    assert done.exit_code == status, (words, done.output, done.exception)
    return done.output


async def send(cluster: LocalCluster, topic: str) -> None:
    settings = ClientSettings(credentials=Credentials("alice", "alice-secret"))
    async with ClientInstance(cluster.namesrv, settings) as instance, Producer(instance, "shop") as producer:
        await producer.send(Message(topic=topic, body=b"x"))


def refusal(cluster: LocalCluster, topic: str) -> str:
    with pytest.raises(ArianeError) as error:
        asyncio.run(send(cluster, topic))
    return str(error.value)


def test_a_user_may_do_what_its_policies_allow(cluster: LocalCluster) -> None:
    assert "would save user alice" in run(cluster, "user", "set", "alice", "--password", "alice-secret", "--dry-run")
    run(cluster, "user", "set", "alice", "--password", "alice-secret")
    assert "no matched policies" in refusal(cluster, "orders")
    run(cluster, "policy", "set", "alice", "Topic:o*", "Topic:bills", "--action", "pub")
    asyncio.run(send(cluster, "orders"))
    run(cluster, "policy", "set", "alice", "Topic:orders", "--action", "All", "--deny", "--from", "127.0.0.0/8")
    assert "the decision is deny" in refusal(cluster, "orders")
    listed = json.loads(run(cluster, "policy", "list", "--json"))
    assert [(row["resource"], row["actions"], row["addresses"], row["decision"]) for row in listed] == [
        ("Topic:o*", ["Pub"], [], "Allow"),
        ("Topic:bills", ["Pub"], [], "Allow"),
        ("Topic:orders", ["All"], ["127.0.0.0/8"], "Deny"),
    ]
    run(cluster, "policy", "delete", "alice", "--resource", "Topic:orders")
    asyncio.run(send(cluster, "orders"))
    run(cluster, "user", "set", "alice", "--disable")
    assert "User:alice is disabled" in refusal(cluster, "orders")
    shown = run(cluster, "user", "list", "--json")
    assert "secret" not in shown
    assert [(row["user"], row["type"], row["status"]) for row in json.loads(shown)] == [
        ("alice", "Normal", "disable"),
        ("root", "Super", "enable"),
    ]
    run(cluster, "user", "delete", "alice")
    assert "alice" in refusal(cluster, "orders")
    assert "no matched" not in refusal(cluster, "orders")
    assert json.loads(run(cluster, "policy", "list", "--json")) == []

"""`ariane acl` against a broker with access control: every change by its effect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ariane.cli import main
from ariane.errors import ReplyError
from ariane.protocol.secret_masks import mask_of
from ariane.testing import LocalCluster

FILE = "globalWhiteRemoteAddresses: []\naccounts:\n- {accessKey: root-account, secretKey: root-secret, admin: true}\n"
ACCOUNT = {"ARIANE_ACCESS_KEY": "root-account", "ARIANE_SECRET_KEY": "root-secret", "COLUMNS": "200"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    home = tmp_path_factory.mktemp("acl")
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(FILE)
    with LocalCluster(home, acl_enable=True, rocketmq_home=str(home)) as servers:
        yield servers


def run(cluster: LocalCluster, *words: str) -> str:
    done = CliRunner().invoke(main.app, ["acl", *words, "-n", cluster.namesrv], env=ACCOUNT)
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.stdout


def accounts(cluster: LocalCluster, *options: str) -> dict[str, dict[str, Any]]:
    (server,) = json.loads(run(cluster, "list", "--json", *options))
    return {account["account"]: account for account in server["accounts"]}


def test_an_account_is_created_changed_and_deleted(cluster: LocalCluster) -> None:
    words = (
        "set",
        "shop-account",
        "--secret",
        "12345678",
        "--topic",
        "orders=pub",
        "--topic",
        "bills=PUB|SUB",
        "--default-topic",
        "DENY",
    )
    assert "would save account shop-account" in run(cluster, *words, "--dry-run")
    assert "shop-account" not in accounts(cluster)
    assert f"saved account shop-account on {cluster.broker.addr}" in run(cluster, *words)
    shop = accounts(cluster)["shop-account"]
    assert (shop["topics"], shop["defaultTopicPermission"], shop["admin"]) == (
        ["orders=PUB", "bills=PUB|SUB"],
        "DENY",
        False,
    )
    assert "shop-account" in run(cluster, "list")

    run(cluster, "set", "shop-account", "--group", "billing=SUB", "--admin")
    run(cluster, "set", "shop-account", "--default-group", "SUB")
    shop = accounts(cluster)["shop-account"]
    kept = (shop["topics"], shop["secretKey"], shop["admin"])  # what a later change does not name stays
    assert kept == (["orders=PUB", "bills=PUB|SUB"], mask_of("shop-account", "12345678"), True)
    assert (shop["groups"], shop["defaultGroupPermission"]) == (["billing=SUB"], "SUB")

    assert f"deleted account shop-account on {cluster.broker.addr}" in run(cluster, "delete", "shop-account")
    assert set(accounts(cluster)) == {"root-account"}


def test_secrets_are_hidden(cluster: LocalCluster) -> None:
    assert "root-secret" not in run(cluster, "list") + run(cluster, "list", "--json")
    mask = accounts(cluster)["root-account"]["secretKey"]
    assert mask == mask_of("root-account", "root-secret")
    words = ["acl", "set", "root-account", "--secret", mask, "-n", cluster.namesrv]
    done = CliRunner().invoke(main.app, words, env=ACCOUNT)
    assert "expected the key itself" in str(done.exception)


def test_global_addresses_are_replaced(cluster: LocalCluster) -> None:
    run(cluster, "allow", "10.9.9.*")
    assert "needs no account from: 10.9.9.*" in run(cluster, "list")
    run(cluster, "allow", "")
    assert "needs no account" not in run(cluster, "list")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("set", "x", "--topic", "orders"), "expected NAME=PERMISSION"),
        (("set", "x", "--topic", "orders=READ"), "expected one of DENY, PUB, SUB"),
        (("set", "x", "--default-group", "ALL"), "expected one of DENY, PUB, SUB"),
    ],
)
def test_invalid_permissions_are_refused(words: tuple[str, ...], reason: str) -> None:
    done = CliRunner().invoke(main.app, ["acl", *words])
    assert done.exit_code == 2
    assert reason in " ".join(done.output.split())


def test_without_an_account_the_broker_refuses(cluster: LocalCluster) -> None:
    done = CliRunner().invoke(main.app, ["acl", "list", "-b", cluster.broker.addr, "-n", cluster.namesrv])
    assert done.exit_code == 1
    assert "AclException" in done.output


def test_a_new_account_without_a_secret_is_refused_by_the_broker(cluster: LocalCluster) -> None:
    done = CliRunner().invoke(main.app, ["acl", "set", "nobody-at-all", "-n", cluster.namesrv], env=ACCOUNT)
    assert isinstance(done.exception, ReplyError)
    assert "secretKey" in str(done.exception)


def test_the_audit_log_is_printed_by_request_and_from_its_files(cluster: LocalCluster) -> None:
    CliRunner().invoke(main.app, ["topic", "list", "-n", cluster.namesrv])  # refused: without an account
    run(cluster, "set", "audited-account", "--secret", "12345678")
    changes = ["--result", "done", "--request", "50", "--resource", "account:audited"]
    words = ["audit", "-n", cluster.namesrv, *changes]
    printed = CliRunner().invoke(main.app, words, env=ACCOUNT)
    assert printed.exit_code == 0, printed.output
    head, resource, who = printed.stdout.splitlines()
    assert head.endswith("done UPDATE_AND_CREATE_ACL_CONFIG") and "broker-a:0 #" in head
    assert resource == "    account:audited-account"
    assert who.startswith("    root-account (signature) from 127.0.0.1:")
    assert max(map(len, printed.stdout.splitlines())) <= 80
    by_request = CliRunner().invoke(main.app, [*words, "--json"], env=ACCOUNT).stdout
    directory = next(cluster_home(cluster).rglob("audit.jsonl")).parent
    from_files = CliRunner().invoke(main.app, ["audit", "--directory", str(directory), "--json", *changes]).stdout
    assert json.loads(from_files) == json.loads(by_request)
    refused = CliRunner().invoke(
        main.app, ["audit", "-n", cluster.namesrv, "--result", "refused", "--limit", "1"], env=ACCOUNT
    )
    assert "refused" in refused.stdout and "only the newest 1 records of broker-a" in refused.stderr
    denied = CliRunner().invoke(main.app, ["audit", "-n", cluster.namesrv, "--name-servers"], env=ACCOUNT)
    assert (denied.exit_code, "audit log of this server is off" in denied.stderr) == (1, True)


def cluster_home(cluster: LocalCluster) -> Path:
    (hosted,) = cluster._servers.masters
    return Path(hosted.config.store_path_root_dir)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--result", "fine"), "expected one of done, failed, refused, unknown, lost"),
        (("--since", "yesterday"), "a duration before now"),
        (("--directory", ".", "--follow"), "cannot be combined"),
        (("--directory", "/nowhere"), "no audit.jsonl"),
    ],
)
def test_invalid_options_of_audit_are_refused(words: tuple[str, ...], reason: str) -> None:
    done = CliRunner().invoke(main.app, ["audit", *words])
    assert reason in f"{done.output} {done.exception}"

"""Users and policies of ACL 2.0: `mqadmin` and clients of 5.3.3 with our broker and with Java's, each command on both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from mqadmin_differential import run_ours

from ariane.protocol.secret_masks import HIDDEN
from ariane.testing import LocalCluster, java
from planted_secrets import leaks

pytestmark = pytest.mark.interop

ROOT, INNER = ("root", "root-secret"), ("inner", "inner-secret")
ALICE = "account=alice:alice-secret"
PROVIDER = "org.apache.rocketmq.auth.{0}.provider.{1}{2}Provider"
COMMANDS = (
    "createUser -b {0} -u alice -p alice-secret",
    "createUser -b {0} -u alice -p alice-secret",
    "createUser -b {0} -u bob -p bob-secret -t Super",
    "updateUser -b {0} -u bob -s disable",
    "updateUser -b {0} -u absent -s disable",
    "getUser -b {0} -u bob",
    "getUser -b {0} -u absent",
    "listUser -b {0} -f o",
    "createAcl -b {0} -s User:alice -r Topic:a*,Group:g,Topic:b -a Pub,Sub -d Allow",
    "createAcl -b {0} -s User:absent -r Topic:a* -a Pub -d Allow",
    "createAcl -b {0} -s User:alice -r Topic:c -a Pub -i 10.1.2.* -d Allow",
    "updateAcl -b {0} -s User:alice -r Topic:b -a Sub -i 10.0.0.0/8,192.168.0.1 -d Deny",
    "getAcl -b {0} -s User:alice",
    "getAcl -b {0} -s User:bob",
    "listAcl -b {0} -s ali",
    "deleteAcl -b {0} -s User:alice -r Topic:b",
    "listAcl -b {0}",
    "deleteAcl -b {0} -s User:bob",
    "deleteUser -b {0} -u bob",
    "deleteUser -b {0} -u bob",
    "listUser -b {0}",
)


def setting(first: str, second: str, names: tuple[str, str]) -> str:
    return json.dumps(dict(zip(names, (first, second), strict=True)), separators=(",", ":"))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, str]]]:
    """Return name server and broker of each kind."""
    if reason := java.V5.available():
        pytest.skip(f"Java peers: {reason}")
    home = tmp_path_factory.mktemp("java")
    settings = {
        "initAuthenticationUser": setting(*ROOT, ("username", "password")),
        "innerClientAuthenticationCredentials": setting(*INNER, ("accessKey", "secretKey")),
    }
    of_java = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        **{
            f"{area}{kind}Provider": PROVIDER.format(area, default + area.capitalize(), kind)
            for area in ("authentication", "authorization")
            for kind, default in (("", "Default"), ("Metadata", "Local"))
        },
        **settings,
    }
    with (
        LocalCluster(
            authentication_enabled=True,
            authorization_enabled=True,
            init_authentication_user=settings["initAuthenticationUser"],
            inner_client_authentication_credentials=settings["innerClientAuthenticationCredentials"],
        ) as own,
        java.V5.name_server(home / "ns") as names,
        java.V5.broker(home, names.addr, properties=of_java) as broker,
    ):
        yield {"ariane": (own.namesrv, own.broker.addr), "java": (names.addr, broker.addr)}


def run_admin(home: Path, namesrv: str, addr: str, *lines: str) -> list[str]:
    """Return the output of each command that root signs."""
    (home / "conf").mkdir(exist_ok=True)
    (home / "conf" / "tools.yml").write_text(f"accessKey: {ROOT[0]}\nsecretKey: {ROOT[1]}\n")
    printed = java.V5.run("ariane.peers.Admin", [namesrv, *(line.format(addr) for line in lines)], home=home)
    outputs = re.split(r"^#### \d+$", "\n".join(printed), flags=re.MULTILINE)[: len(lines)]
    assert len(outputs) == len(lines), printed
    return outputs


def normalized(output: str, addr: str) -> str:
    """Return an output without stack traces, passwords and addresses."""
    lines = [
        line for line in output.strip().splitlines() if not re.match(r"\s+at |\s*\.\.\. |Caused by.*SubCommand", line)
    ]
    text = re.sub(r"\b(\w+-secret|null)\b", "PASSWORD", "\n".join(lines)).replace(addr, "ADDR")
    return re.sub(r" +", " ", re.sub(r"For more information.*", "", text)).strip()


def test_commands_print_the_same(servers: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    printed = {kind: run_admin(tmp_path, *server, *COMMANDS) for kind, server in servers.items()}
    secrets = (ROOT[1], INNER[1], "alice-secret", "bob-secret")
    assert leaks({line: text.encode() for line, text in zip(COMMANDS, printed["ariane"], strict=True)}, secrets) == []
    outputs = {kind: [normalized(text, servers[kind][1]) for text in texts] for kind, texts in printed.items()}
    expected = [
        theirs.replace(
            "The source ip is invalid.", "sourceIps = '10.1.2.*': expected an IP address or a network like 10.1.0.0/16"
        )
        for theirs in outputs["java"]
    ]
    assert list(zip(COMMANDS, outputs["ariane"], strict=True)) == list(zip(COMMANDS, expected, strict=True))


@pytest.mark.long(
    "tests/interop/test_users_with_java.py::test_commands_print_the_same",
)
def test_our_tool_prints_what_java_prints(
    servers: dict[str, tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except passwords, and refusals: their reason is on stderr."""
    namesrv, addr = servers["ariane"]
    monkeypatch.setenv("ARIANE_ACCESS_KEY", ROOT[0])
    monkeypatch.setenv("ARIANE_SECRET_KEY", ROOT[1])
    lines = ("deleteUser -b {0} -u alice", *COMMANDS, "copyUser -f {0} -t {0} -u alice,root", "copyAcl -f {0} -t {0}")
    ours = [run_ours(namesrv, line.format(addr)) for line in lines]
    expected = run_admin(tmp_path, namesrv, addr, *lines)
    assert [line for line, (_, error, status) in zip(lines, ours, strict=True) if error or status] == [
        line for line, theirs in zip(lines, expected, strict=True) if "Exception" in theirs
    ]
    assert [
        (line, normalized(mine.output.replace(HIDDEN, "null"), addr)) for line, mine in zip(lines, ours, strict=True)
    ] == [
        (line, "" if "Exception" in theirs else normalized(theirs, addr))
        for line, theirs in zip(lines, expected, strict=True)
    ]
    assert "nothing to change" in run_ours(namesrv, f"updateUser -b {addr} -u alice").error


def test_signed_clients_may_do_what_policies_allow(servers: dict[str, tuple[str, str]]) -> None:
    namesrv = servers["ariane"][0]
    sent = java.events(
        java.V5.run("ariane.peers.Produce", [namesrv, "a1", "P", "2", ALICE], jvm_args=java.V5.quick_start())
    )
    assert {event["status"] for event in sent} == {"SEND_OK"}
    received = java.events(
        java.V5.run("ariane.peers.Consume", [namesrv, "a1", "g", "*", "2", "60", ALICE], jvm_args=java.V5.quick_start())
    )
    assert {event["msgId"] for event in received} == {event["msgId"] for event in sent}
    for topic, account, reason in (
        ("c1", ALICE, "User:alice has no permission to access Topic:c1 from 127.0.0.1, no matched policies"),
        ("a1", "account=alice:another-secret", "Check signature failed"),
    ):
        with pytest.raises(RuntimeError, match=reason):
            java.V5.run("ariane.peers.Produce", [namesrv, topic, "P", "1", account], jvm_args=java.V5.quick_start())

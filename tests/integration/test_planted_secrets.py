"""No output of a whole session contains a secret: requests of every code, commands, pages, metrics, logs, errors and files.

Each secret is different and planted on purpose. All outputs are collected, and searched for each secret as it is, in base64, in
hexadecimal and as part of a URL. One session is that of accounts of plain_acl.yml, the other that of users of ACL 2.0 with a slave,
which signs its requests to its master.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives import serialization
from fastapi.testclient import TestClient
from test_access_table import SEND, any_certificate, frame, requests, responses
from typer.testing import CliRunner

from ariane.audit.audited_requests import CHANGES, READS
from ariane.broker.access.request_permissions import REQUEST_NEEDS
from ariane.broker.broker import Broker
from ariane.broker.failover.failover_settings import open_coordination
from ariane.cli import main
from ariane.cli.mqadmin.main import main as mqadmin
from ariane.client import Credentials
from ariane.client.instance.settings import ClientSettings
from ariane.console.app import create_app
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings
from ariane.errors import ArianeError
from ariane.metrics.broker.broker_source import BrokerSource
from ariane.metrics.serving import exposition
from ariane.model import ids
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.java_properties import write as write_properties
from ariane.spark.option_parsing import parse_options
from ariane.spark.wire import access as spark_access
from ariane.testing import LocalCluster
from ariane.testing.cluster_servers import broker_config
from planted_secrets import leaks, planted
from tls_files import TestAuthority

STOCK = Credentials("stock-account", planted("file"))
NEW, CONSOLE, HOOK, MAIL = planted("new"), planted("console"), planted("hook"), planted("mail")
TLS_SERVER, TLS_CLIENT, CONFIG = planted("tls-server"), planted("tls-client"), planted("config")
BROKER, INNER, COORDINATION = planted("broker"), planted("inner"), planted("coordination")
COMMAND = planted("command")


class Accounts(NamedTuple):
    """Who makes the requests of a session."""

    admin: Credentials
    wrong: Credentials


ACCOUNTS = {
    kind: Accounts(*(Credentials(f"admin-{kind}", planted(f"{kind}-{name}")) for name in ("admin", "wrong")))
    for kind in ("account", "user")
}
SECRETS = (
    *(credentials.secret_key for accounts in ACCOUNTS.values() for credentials in accounts), STOCK.secret_key, NEW, CONSOLE,
    HOOK, MAIL, TLS_SERVER, TLS_CLIENT, CONFIG, BROKER, INNER, COORDINATION,
    COMMAND,
)  # fmt: skip

BASE = "http://127.0.0.1:8080"
# Files that hold secrets on purpose, for their owner only.
HOLDERS = {
    "account": ("conf/plain_acl.yml", "stock-secret", "console/alert_rules.json", "key-password"),
    "user": ("store/config/users.json", "slave1/config/users.json", "console/alert_rules.json", "key-password"),
}


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_found_in_each_form(secret: str) -> None:
    text = f'{{"key":"{secret}","other":1}}'
    for shift in range(3):
        encoded = base64.b64encode(b"x" * shift + text.encode())
        assert leaks({"a": encoded}, SECRETS) == [f"a: {secret}"]
    for found in (text, text.encode().hex(), quote(text)):
        assert leaks({"a": found.encode()}, SECRETS) == [f"a: {secret}"]
    assert leaks({"a": text.replace("PLANTED", "planted").encode()}, SECRETS) == []


class Session(NamedTuple):
    """Running servers, and who makes requests to them."""

    kind: str  # account or user
    home: Path
    cluster: LocalCluster

    @property
    def accounts(self) -> Accounts:
        return ACCOUNTS[self.kind]


def encrypt_key(file: str, password: str) -> None:
    key = serialization.load_pem_private_key(Path(file).read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(password.encode())
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    Path(file).write_bytes(key.private_bytes(pem, form, encryption))


@pytest.fixture(scope="module", params=["account", "user"])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A name server and brokers with access control and an encrypted key."""
    home = tmp_path_factory.mktemp("planted")
    authority = TestAuthority(home)
    files = authority.files("server")
    encrypt_key(files.key, TLS_SERVER)
    encrypt_key(authority.files("command").key, COMMAND)
    (home / "key-password").write_text(COMMAND)
    settings = {
        "tls_server_cert_path": files.cert, "tls_server_key_path": files.key, "tls_server_key_password": TLS_SERVER,
        "tls_client_key_password": TLS_CLIENT, "tls_test_mode_enable": "false",
        **(with_accounts(home) if request.param == "account" else with_users()),
    }  # fmt: skip
    with LocalCluster(home, slaves=1 if request.param == "user" else 0, **settings) as servers:
        yield Session(request.param, home, servers)


def with_accounts(home: Path) -> dict[str, object]:
    admin, _ = ACCOUNTS["account"]
    (home / "conf").mkdir()
    (home / "stock-secret").write_text(STOCK.secret_key)
    (home / "conf" / "plain_acl.yml").write_text(
        f"accounts:\n- {{accessKey: {admin.access_key}, secretKey: '{admin.secret_key}', admin: true}}\n"
        f"- {{accessKey: stock-account, secretKeyFile: {home}/stock-secret, topicPerms: [orders=SUB]}}\n"
    )
    own = {"access_key": "broker-account", "secret_key": BROKER}
    return {"acl_enable": True, "rocketmq_home": str(home), **own}


def with_users() -> dict[str, object]:
    admin, _ = ACCOUNTS["user"]
    return {
        "authentication_enabled": True,
        "authorization_enabled": True,
        "init_authentication_user": json.dumps({"username": admin.access_key, "password": admin.secret_key}),
        "inner_client_authentication_credentials": json.dumps({"accessKey": "inner-user", "secretKey": INNER}),
    }


def text_of(response: Command) -> bytes:
    return f"{response!r} {response.remark} {response.field_map()}".encode() + bytes(response.body)


def user_requests() -> list[tuple[int, dict[str, str], bytes]]:
    """Return what `mqadmin` of 5.x sends for createUser, updateUser, getUser and listUser, and invalid forms of it."""
    code = RequestCode
    user = {"username": "new-user", "password": NEW, "userType": "Normal"}
    samples: list[tuple[int, dict[str, str], object]] = [
        (code.AUTH_CREATE_USER, {"username": "stock-account"}, {"password": STOCK.secret_key}),
        (code.AUTH_CREATE_USER, {"username": "new-user"}, user),
        (code.AUTH_CREATE_USER, {"username": "new-user"}, user),
        (code.AUTH_UPDATE_USER, {"username": "new-user"}, {**user, "password": CONFIG}),
        (code.AUTH_UPDATE_USER, {"username": "absent-user"}, user),
        (code.AUTH_CREATE_USER, {"username": "other-user"}, {**user, "password": NEW * 100}),
        (code.AUTH_CREATE_USER, {"username": "other-user"}, {**user, "userType": "Absent"}),
        (code.AUTH_CREATE_USER, {"username": "other user"}, user),
        (code.AUTH_CREATE_USER, {"username": "other-user"}, [user]),
        *((code.AUTH_GET_USER, {"username": name}, {}) for name in ("new-user", "inner-user", "admin-user")),
        (code.AUTH_LIST_USER, {"filter": ""}, {}),
        (code.AUTH_LIST_ACL, {}, {}),
    ]
    text = json.dumps(user)
    malformed = (
        text[:-2],
        text.replace(f'"{NEW}"', NEW),
        text.replace(NEW, f"\\{NEW}"),
        text.replace(NEW, f"\\u{NEW}"),
    )
    return [
        *((code, fields, json.dumps(body).encode()) for code, fields, body in samples),
        *((code.AUTH_UPDATE_USER, {"username": "new-user"}, body.encode()) for body in malformed),
    ]


def requested(session: Session) -> dict[str, bytes]:
    """Send every code to broker and name server, signed rightly, wrongly, and by another account."""
    (admin, wrong), cluster = session.accounts, session.cluster
    broker, name_server = (int(addr.rpartition(":")[2]) for addr in (cluster.broker.addr, cluster.namesrv))
    codes = (CHANGES.keys() | READS) - REQUEST_NEEDS.keys()  # those of name servers

    async def work() -> dict[str, bytes]:
        stored = (await responses(broker, None, [frame(admin, RequestCode.SEND_MESSAGE, SEND, b"body", 0)]))[0]
        message_id = stored.field_map()["msgId"]
        samples = requests(ids.parse_offset_message_id(message_id)[1], message_id)
        config, misspelt = (
            write_properties({key: CONFIG}).encode() for key in ("tls.server.keyPassword", "tls.keyPassword")
        )
        account = {"accessKey": "new-account", "secretKey": NEW, "topicPerms": "orders=PUB"}
        samples |= {
            RequestCode.UPDATE_BROKER_CONFIG: ({}, config),
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: (account, b""),
            RequestCode.GET_AUDIT_LOG: ({}, b""),
        }
        invalid = [
            {**account, "secretKey": NEW * 100},
            {**account, "topicPerms": "orders"},
            {"accessKey": "", "secretKey": NEW},
        ]
        outputs = {}
        for name, sender, tls in (("admin", admin, any_certificate()), ("wrong", wrong, None), ("stock", STOCK, None)):
            for number, user in enumerate(user_requests()):  # one by one: each sees the changes before it
                (response,) = (await responses(broker, tls, [frame(sender, *user, 0)])).values()
                outputs[f"broker {name} user {number}"] = text_of(response)
            sent = [frame(sender, code, *samples[code], code) for code in REQUEST_NEEDS]
            sent.append(frame(sender, RequestCode.UPDATE_BROKER_CONFIG, {}, misspelt, 19_000))
            sent += [frame(sender, 50, fields, b"", 20_000 + number) for number, fields in enumerate(invalid)]
            for opaque, response in (await responses(broker, tls, sent)).items():
                outputs[f"broker {name} {opaque}"] = text_of(response)
        frames = [frame(admin, code, {"namespace": "n", "key": "k", "topic": "orders"}, config, code) for code in codes]
        for opaque, response in (await responses(name_server, None, frames)).items():
            outputs[f"name server {opaque}"] = text_of(response)
        assert b"cannot be changed" in outputs["broker admin 25"] and b"cannot be changed" in outputs["name server 318"]
        assert (b"new-user" in outputs["broker admin user 9"]) is (session.kind == "user")
        return outputs

    return asyncio.run(work())


COMMANDS = (
    "acl list", "acl set newer-account --secret {NEW} --topic orders=PUB", "acl set newer-account --secret {NEW} --dry-run",
    "acl set newer-account --secret {NEW} --topic orders=ALL", "acl delete newer-account", "cluster list", "doctor",
    "topic list", "topic show orders", "group list", "broker config broker-a", "cat --help", "acl set --help", "audit",
    "acl user set newer-user --password {NEW}", "acl user set newer-user --password {NEW} --super --dry-run",
    "acl user set newer,user --password {NEW}", "acl user list", "acl policy set newer-user Topic:orders --action Pub",
    "acl policy set newer-user Topic:orders --action Absent", "acl policy list", "acl policy delete newer-user",
    "acl user delete newer-user",
)  # fmt: skip
MQADMIN = (
    "getAclConfig -c DefaultCluster", "clusterAclConfigVersion -c DefaultCluster", "clusterList", "getBrokerConfig -b {addr}",
    "getNamesrvConfig", "brokerStatus -b {addr}", "updateAclConfig -b {addr} -a newer-account -s {NEW} -t orders=SUB",
    "updateAclConfig -b {addr} -a newer-account -s {NEW} --dry-run", "updateAclConfig -b {addr} -a newer-account -s short",
    "updateBrokerConfig -b {addr} -k tls.server.keyPassword -v x",
)  # fmt: skip


def printed(session: Session, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Run commands as the admin and with a wrong key, as text and as JSON."""
    outputs, cluster, (admin, wrong) = {}, session.cluster, session.accounts
    values = {"NEW": NEW, "addr": cluster.broker.addr}
    for name_of_key, account in (("admin", admin), ("wrong", wrong)):
        environment = {
            "ARIANE_ACCESS_KEY": account.access_key,
            "ARIANE_SECRET_KEY": account.secret_key,
            "COLUMNS": "200",
            "ARIANE_TLS": "true",
            "ARIANE_TLS_CA_FILE": str(session.home / "ca.pem"),
            "ARIANE_TLS_CERT_FILE": str(session.home / "command.pem"),
            "ARIANE_TLS_KEY_FILE": str(session.home / "command.key"),
            "ARIANE_TLS_KEY_PASSWORD_FILE": str(session.home / "key-password"),
        }
        for line in COMMANDS:
            for more in ([], ["--json"])[: 2 if account is admin else 1]:
                words = [*line.format(**values).split(), *more, *([] if "--help" in line else ["-n", cluster.namesrv])]
                done = CliRunner().invoke(main.app, words, env=environment)
                error = "".join(traceback.format_exception(done.exception)) if done.exception else ""
                outputs[f"ariane {line} {more} {name_of_key}"] = f"{done.output}{done.stderr}{error}".encode()
        other_key = {**environment, "ARIANE_TLS_KEY_FILE": str(session.home / "server.key")}  # of another password
        done = CliRunner().invoke(main.app, ["topic", "list", "-n", cluster.namesrv], env=other_key)
        outputs[f"another key {name_of_key}"] = f"{done.output}{done.stderr}{done.exception!r}".encode()
        assert done.exit_code, done.output
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        for line in MQADMIN:
            for more in ([], ["--json"])[: 2 if account is admin else 1]:
                mqadmin([*line.format(**values).split(), *more, "-n", cluster.namesrv])
                captured = capsys.readouterr()
                outputs[f"mqadmin {line} {more} {name_of_key}"] = (captured.out + captured.err).encode()
    return outputs


def visited(session: Session) -> dict[str, bytes]:
    """Visit all pages and REST resources of a console without parameters, after changes with secrets."""
    outputs = {}
    signed = ClientSettings(credentials=session.accounts.admin)
    settings = ConsoleSettings(namesrv=session.cluster.namesrv, data_dir=session.home / "console", client=signed)
    app = create_app(open_services(settings))
    account = {"accessKey": "page-account", "secretKey": NEW, "topicPerms": "orders=PUB"}
    hook = {"name": "hook", "url": f"https://127.0.0.1:1/{quote(HOOK)}", "authorization": HOOK}
    mail = {
        "name": "mail", "host": "127.0.0.1", "port": "1", "sender": "a@example.org", "recipients": "b@example.org",
        "user": "u", "password": MAIL,
    }  # fmt: skip
    with TestClient(app, base_url=BASE, follow_redirects=True) as client:
        for path, form in (
            ("/access/acl/accounts", account),
            ("/access/acl/accounts", {**account, "topicPerms": "orders=ALL"}),
            ("/access/acl/users", {"username": "page-user", "password": NEW}),
            ("/access/acl/users", {"username": "page user", "password": NEW, "isDryRun": "true"}),
            ("/alerts/channels/web-hooks", hook),
            ("/alerts/channels/email", mail),
            ("/access/users", {"name": "ann", "role": "admin", "password": "short"}),
        ):
            answer = client.post(path, data=form, headers={"HX-Request": "true"})
            outputs[f"POST {path}"] = answer.content + str(answer.headers).encode()
        resources = client.get("/api/v1/openapi.json").json()["paths"]
        paths = [path for path, methods in resources.items() if "get" in methods and "{" not in path]
        # Each page has the path of its resource.
        for path in [*paths, *(path.removeprefix("/api/v1") for path in paths)]:
            answer = client.get(path)
            outputs[f"GET {path}"] = answer.content + str(answer.headers).encode()
        client.post(
            "/access/users", data={"name": "ann", "role": "admin", "password": CONSOLE}, headers={"HX-Request": "true"}
        )
        outputs["log-in"] = client.post("/login", data={"name": "ann", "password": CONSOLE + "x"}).content
        outputs["users"] = client.get("/access", auth=("ann", CONSOLE)).content
    return outputs


def scraped(cluster: LocalCluster) -> bytes:
    (hosted,) = cluster._servers.masters
    broker = hosted.running
    assert broker is not None
    families = cluster._thread.run(BrokerSource(broker.services, broker.handlers.runtime_info).families(None))
    return "".join(exposition.encode(families, is_openmetrics=False)).encode()


def shown_options() -> dict[str, bytes]:
    """Return what the Spark connector shows of its options, and its errors about them."""
    options = {"namesrv": "127.0.0.1:1", "accessKey": "stock-account", "secretKey": STOCK.secret_key}
    readers, struct = spark_access.READERS, spark_access.ClusterAccess
    parsed = struct(**parse_options(options, "rocketmq", struct, readers))
    outputs = {
        "Spark options": repr(parsed).encode(),
        "Spark credentials": repr(spark_access.credentials(parsed)).encode(),
    }
    for wrong in ({"secretKeyy": NEW}, {"securityToken": NEW}, {"secretKey": NEW}):
        with pytest.raises(ArianeError) as error:
            spark_access.validate(
                struct(**parse_options({"namesrv": "127.0.0.1:1", **wrong}, "rocketmq", struct, readers))
            )
        outputs[f"Spark {sorted(wrong)}"] = "".join(traceback.format_exception(error.value)).encode()
    return outputs


def configured(home: Path) -> dict[str, bytes]:
    """Return what a broker prints of a file with all its secrets, and errors about invalid ones, its own and etcd's."""
    user, inner = (
        json.dumps(value)
        for value in ({"username": "root", "password": NEW}, {"accessKey": "inner-user", "secretKey": INNER})
    )
    password, file = home / "etcd-password", home / "broker.conf"
    password.write_text(COORDINATION)
    secrets = {
        "accessKey": "broker-account", "secretKey": BROKER, "secretKeyy": BROKER, "tls.server.keyPassword": TLS_SERVER,
        "initAuthenticationUser": user, "innerClientAuthenticationCredentials": inner, "failoverPasswordFile": str(password),
    }  # fmt: skip
    file.write_text(write_properties(secrets))
    done = CliRunner().invoke(main.app, ["broker", "-c", str(file), "-p"])
    outputs = {"printConfigItem": f"{done.output}{done.stderr}".encode()}
    assert b"failoverPasswordFile=" in outputs["printConfigItem"] and b"secretKeyy" in outputs["printConfigItem"]
    is_on = {"authentication_enabled": True}
    invalid: list[dict[str, object]] = [
        {"secret_key": BROKER},
        {**is_on, "init_authentication_user": user[:-1]},
        {**is_on, "init_authentication_user": user.replace(NEW, NEW * 100)},
        {**is_on, "inner_client_authentication_credentials": inner.replace("accessKey", "access")},
    ]

    async def start(settings: dict[str, object]) -> None:
        async with Broker(broker_config(home / "unused", "", **settings)):
            pass

    for number, settings in enumerate(invalid):
        with pytest.raises(ArianeError) as refused:
            asyncio.run(start(settings))
        outputs[f"invalid setting {number}"] = "".join(traceback.format_exception(refused.value)).encode()
    with pytest.raises(ArianeError) as unavailable:
        asyncio.run(coordinated(password))
    outputs["etcd"] = "".join(traceback.format_exception(unavailable.value)).encode()
    assert b"invalid user ID or password" in outputs["etcd"]
    return outputs


async def coordinated(password: Path) -> None:
    """Read the record of a broker set from an etcd that refuses the password."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert COORDINATION.encode() in await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split()[0]))
        body = b'{"code":3,"message":"etcdserver: authentication failed, invalid user ID or password"}'
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        user = {"failover_user": "ariane", "failover_password_file": str(password)}
        coordination = open_coordination(broker_config("", "", failover_endpoints=endpoint, **user))
        try:
            await coordination.read()
        finally:
            await coordination.close()


def test_no_output_of_a_session_contains_a_secret(
    session: Session,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, home, cluster = session
    logging.getLogger("asyncio").setLevel(logging.INFO)  # it logs each loop of a command
    with caplog.at_level(logging.DEBUG):
        outputs = requested(session) | printed(session, capsys, monkeypatch) | visited(session)
        outputs |= shown_options() | configured(tmp_path)
        outputs["metrics"] = scraped(cluster)
    outputs["log"] = caplog.text.encode()
    for hosted in (*cluster._servers.masters, *cluster._servers.slaves):
        outputs[f"settings {hosted.config.broker_id}"] = repr(hosted.config).encode()
    holders = [home / name for name in HOLDERS[kind]]
    for path in home.rglob("*"):
        if path.is_file() and path not in holders and path.stat().st_size < 1 << 20:
            outputs[str(path.relative_to(home))] = path.read_bytes()
    assert [path for path in holders if not leaks({str(path): path.read_bytes()}, SECRETS)] == []
    assert {path.stat().st_mode & 0o077 for path in holders if path.name == "users.json"} <= {0}
    assert b"admin-" in outputs["ariane acl list [] admin"] + outputs["ariane acl user list [] admin"]
    assert "store/audit/audit.jsonl" in outputs
    assert len([name for name in outputs if name.startswith("GET ")]) > 30
    assert "\n".join(leaks(outputs, SECRETS)) == ""

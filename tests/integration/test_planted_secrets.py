"""No output of a whole session contains a secret: requests of every code, commands, pages, metrics, logs, errors and files.

Each secret of the session is different and planted on purpose. All outputs are collected, and searched for each secret as it is, in
base64, in hexadecimal and as part of a URL.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives import serialization
from fastapi.testclient import TestClient
from test_access_table import SEND, any_certificate, frame, requests, responses
from typer.testing import CliRunner

from ariane.audit.audited_requests import CHANGES, READS
from ariane.broker.access.request_permissions import REQUEST_NEEDS
from ariane.cli import main
from ariane.cli.mqadmin.main import main as mqadmin
from ariane.client import Credentials
from ariane.client.instance.settings import ClientSettings
from ariane.console.app import create_app
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings
from ariane.errors import ArianeError
from ariane.metrics import exposition
from ariane.metrics.broker_source import BrokerSource
from ariane.model import ids
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.java_properties import write as write_properties
from ariane.spark.option_parsing import parse_options
from ariane.spark.wire import access as spark_access
from ariane.testing import LocalCluster
from planted_secrets import leaks, planted
from tls_files import TestAuthority

ADMIN, WRONG = (Credentials("admin-account", planted(name)) for name in ("admin", "wrong"))
STOCK = Credentials("stock-account", planted("file"))
NEW, CONSOLE, HOOK, MAIL = planted("new"), planted("console"), planted("hook"), planted("mail")
TLS_SERVER, TLS_CLIENT, CONFIG = planted("tls-server"), planted("tls-client"), planted("config")
SECRETS = (
    ADMIN.secret_key,
    WRONG.secret_key,
    STOCK.secret_key,
    NEW,
    CONSOLE,
    HOOK,
    MAIL,
    TLS_SERVER,
    TLS_CLIENT,
    CONFIG,
)

BASE = "http://127.0.0.1:8080"
# Files that hold secrets on purpose, for their owner only.
HOLDERS = ("conf/plain_acl.yml", "stock-secret", "console/alert_rules.json")


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_found_in_each_form(secret: str) -> None:
    text = f'{{"key":"{secret}","other":1}}'
    for shift in range(3):
        encoded = base64.b64encode(b"x" * shift + text.encode())
        assert leaks({"a": encoded}, SECRETS) == [f"a: {secret}"]
    for found in (text, text.encode().hex(), quote(text)):
        assert leaks({"a": found.encode()}, SECRETS) == [f"a: {secret}"]
    assert leaks({"a": text.replace("PLANTED", "planted").encode()}, SECRETS) == []


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("planted")
    (home / "conf").mkdir()
    (home / "stock-secret").write_text(STOCK.secret_key)
    (home / "conf" / "plain_acl.yml").write_text(
        f"accounts:\n- {{accessKey: admin-account, secretKey: '{ADMIN.secret_key}', admin: true}}\n"
        f"- {{accessKey: stock-account, secretKeyFile: {home}/stock-secret, topicPerms: [orders=SUB]}}\n"
    )
    return home


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[LocalCluster]:
    """A name server and a broker with access control and an encrypted key."""
    files = TestAuthority(home).files("server")
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(TLS_SERVER.encode())
    form = serialization.PrivateFormat.PKCS8
    Path(files.key).write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
    settings = {
        "acl_enable": True, "rocketmq_home": str(home), "tls_server_cert_path": files.cert, "tls_server_key_path": files.key,
        "tls_server_key_password": TLS_SERVER, "tls_client_key_password": TLS_CLIENT, "tls_test_mode_enable": "false",
    }  # fmt: skip
    with LocalCluster(home, **settings) as servers:
        yield servers


def text_of(response: Command) -> bytes:
    return f"{response!r} {response.remark} {response.field_map()}".encode() + bytes(response.body)


def requested(cluster: LocalCluster) -> dict[str, bytes]:
    """Send every code to broker and name server, signed rightly, wrongly, and by another account."""
    broker, name_server = (int(addr.rpartition(":")[2]) for addr in (cluster.broker.addr, cluster.namesrv))
    codes = (CHANGES.keys() | READS) - REQUEST_NEEDS.keys()  # those of name servers

    async def work() -> dict[str, bytes]:
        stored = (await responses(broker, None, [frame(ADMIN, RequestCode.SEND_MESSAGE, SEND, b"body", 0)]))[0]
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
        wrong = [
            {**account, "secretKey": NEW * 100},
            {**account, "topicPerms": "orders"},
            {"accessKey": "", "secretKey": NEW},
        ]
        outputs = {}
        for name, sender, tls in (("admin", ADMIN, any_certificate()), ("wrong", WRONG, None), ("stock", STOCK, None)):
            sent = [frame(sender, code, *samples[code], code) for code in REQUEST_NEEDS]
            sent.append(frame(sender, RequestCode.UPDATE_BROKER_CONFIG, {}, misspelt, 19_000))
            sent += [frame(sender, 50, fields, b"", 20_000 + number) for number, fields in enumerate(wrong)]
            for opaque, response in (await responses(broker, tls, sent)).items():
                outputs[f"broker {name} {opaque}"] = text_of(response)
        frames = [frame(ADMIN, code, {"namespace": "n", "key": "k", "topic": "orders"}, config, code) for code in codes]
        for opaque, response in (await responses(name_server, None, frames)).items():
            outputs[f"name server {opaque}"] = text_of(response)
        assert b"cannot be changed" in outputs["broker admin 25"] and b"cannot be changed" in outputs["name server 318"]
        return outputs

    return asyncio.run(work())


COMMANDS = (
    "acl list", "acl set newer-account --secret {NEW} --topic orders=PUB", "acl set newer-account --secret {NEW} --dry-run",
    "acl set newer-account --secret {NEW} --topic orders=ALL", "acl delete newer-account", "cluster list", "doctor",
    "topic list", "topic show orders", "group list", "broker config broker-a", "cat --help", "acl set --help", "audit",
)  # fmt: skip
MQADMIN = (
    "getAclConfig -c DefaultCluster", "clusterAclConfigVersion -c DefaultCluster", "clusterList", "getBrokerConfig -b {addr}",
    "getNamesrvConfig", "brokerStatus -b {addr}", "updateAclConfig -b {addr} -a newer-account -s {NEW} -t orders=SUB",
    "updateAclConfig -b {addr} -a newer-account -s {NEW} --dry-run", "updateAclConfig -b {addr} -a newer-account -s short",
    "updateBrokerConfig -b {addr} -k tls.server.keyPassword -v x",
)  # fmt: skip


def printed(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, bytes]:
    """Run commands as the admin and with a wrong key, as text and as JSON."""
    outputs = {}
    values = {"NEW": NEW, "addr": cluster.broker.addr}
    for name_of_key, account in (("admin", ADMIN), ("wrong", WRONG)):
        environment = {
            "ARIANE_ACCESS_KEY": account.access_key,
            "ARIANE_SECRET_KEY": account.secret_key,
            "COLUMNS": "200",
        }
        for line in COMMANDS:
            for more in ([], ["--json"])[: 2 if account is ADMIN else 1]:
                words = [*line.format(**values).split(), *more, *([] if "--help" in line else ["-n", cluster.namesrv])]
                done = CliRunner().invoke(main.app, words, env=environment)
                error = "".join(traceback.format_exception(done.exception)) if done.exception else ""
                outputs[f"ariane {line} {more} {name_of_key}"] = f"{done.output}{done.stderr}{error}".encode()
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        for line in MQADMIN:
            for more in ([], ["--json"])[: 2 if account is ADMIN else 1]:
                mqadmin([*line.format(**values).split(), *more, "-n", cluster.namesrv])
                captured = capsys.readouterr()
                outputs[f"mqadmin {line} {more} {name_of_key}"] = (captured.out + captured.err).encode()
    return outputs


def visited(cluster: LocalCluster, home: Path) -> dict[str, bytes]:
    """Visit all pages and REST resources of a console without parameters, after changes with secrets."""
    outputs = {}
    settings = ConsoleSettings(
        namesrv=cluster.namesrv, data_dir=home / "console", client=ClientSettings(credentials=ADMIN)
    )
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
    options = {"namesrv": "127.0.0.1:1", "accessKey": "admin-account", "secretKey": ADMIN.secret_key}
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


def test_no_output_of_a_session_contains_a_secret(
    cluster: LocalCluster,
    home: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logging.getLogger("asyncio").setLevel(logging.INFO)  # it logs each loop of a command
    with caplog.at_level(logging.DEBUG):
        outputs = requested(cluster) | printed(cluster, capsys, monkeypatch) | visited(cluster, home) | shown_options()
        outputs["metrics"] = scraped(cluster)
    outputs["log"] = caplog.text.encode()
    (hosted,) = cluster._servers.masters
    outputs["settings"] = repr(hosted.config).encode()
    holders = [home / name for name in HOLDERS]
    for path in home.rglob("*"):
        if path.is_file() and path not in holders and path.stat().st_size < 1 << 20:
            outputs[str(path.relative_to(home))] = path.read_bytes()
    assert leaks({str(path): path.read_bytes() for path in holders}, SECRETS) != []
    assert [name for name in outputs if name.startswith("ariane acl list")] and "store/audit/audit.jsonl" in outputs
    assert len([name for name in outputs if name.startswith("GET ")]) > 30
    assert "\n".join(leaks(outputs, SECRETS)) == ""

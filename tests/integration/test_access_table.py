"""Each request code of a broker with access control × each kind of account and user, over its port, its VIP port, TLS, and in runs.

The expected verdicts are the table in docs/access.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ariane.access import users
from ariane.access.users import User
from ariane.broker.access.request_permissions import REQUEST_NEEDS, RUN_FIELDS
from ariane.broker.handlers.reading.pull_turns import PullTurns
from ariane.broker.handlers.sending.send_turns import SendTurns
from ariane.client import Credentials
from ariane.model import ids
from ariane.net.replies import ServedTurn
from ariane.protocol import command as commands
from ariane.protocol import signing
from ariane.protocol.codes import RequestCode, ResponseCode, code_name
from ariane.protocol.command import Command
from ariane.protocol.frame import FrameReader
from ariane.protocol.records import batch
from ariane.protocol.request_batch import encode_requests
from ariane.protocol.requests.users import PolicyEntryInfo, PolicyInfo
from ariane.store.disk.files import SystemDisk
from ariane.testing import LocalCluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "access.md"
FILE = """
accounts:
- {accessKey: admin-account, secretKey: admin-secret, admin: true}
- {accessKey: reader-account, secretKey: reader-secret, topicPerms: [orders=SUB], groupPerms: [stock=SUB]}
- {accessKey: writer-account, secretKey: writer-secret, topicPerms: [orders=PUB]}
- {accessKey: other-account, secretKey: other-secret, topicPerms: [bills=PUB|SUB], groupPerms: [clerks=SUB]}
"""


def policies(actions: str, *resources: str) -> tuple[PolicyInfo, ...]:
    entries = (PolicyEntryInfo(resource, tuple(actions.split(",")), None, "Allow") for resource in resources)
    return (PolicyInfo("Custom", tuple(entries)),)


ADMIN = Credentials("admin-account", "admin-secret")
SENDERS: dict[str, Credentials | None] = {
    "anonymous": None,
    "wrong signature": Credentials("admin-account", "another-secret"),
    "reader": Credentials("reader-account", "reader-secret"),
    "writer": Credentials("writer-account", "writer-secret"),
    "other group": Credentials("other-account", "other-secret"),
    "admin": ADMIN,
    "reading user": Credentials("reading-user", "reading-secret"),
    "writing user": Credentials("writing-user", "writing-secret"),
    "operating user": Credentials("operating-user", "operating-secret"),
    "Super user": Credentials("super-user", "super-secret"),
}
USERS = [
    User("reading-user", "reading-secret", policies=policies("Sub,Get", "Topic:ord*", "Group:stock")),
    User("writing-user", "writing-secret", policies=policies("Pub", "Topic:orders")),
    User("operating-user", "operating-secret", policies=policies("Create,Update,Delete,Get,List", "*")),
    User("super-user", "super-secret", "Super"),
]
PULLS = {
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.NOTIFICATION,
}
# The bytes of a permitted request, sent again on another connection by a peer that only overheard them.
REPLAYED = "replayed request"
COLUMNS = ("anonymous", "wrong signature", REPLAYED, *list(SENDERS)[2:])
HEADER = "| code | request | accounts need | users need | " + " | ".join(COLUMNS) + " |"

SEND = {
    "producerGroup": "shop", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
    "sysFlag": "0", "bornTimestamp": "0", "flag": "0", "properties": "", "reconsumeTimes": "0", "unitMode": "false",
    "batch": "false",
}  # fmt: skip
SEND_V2 = dict(zip("abcdefghijkm", SEND.values(), strict=True))
PULL = {
    "consumerGroup": "stock", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
}  # fmt: skip
POP = {
    "consumerGroup": "stock", "topic": "orders", "queueId": "0", "maxMsgNums": "1", "invisibleTime": "1", "pollTime": "0",
}  # fmt: skip
HANDLE = {
    "consumerGroup": "stock", "topic": "orders", "queueId": "0", "extraInfo": "0 1 1 0 0 broker-a 0 0", "offset": "0",
    "invisibleTime": "1",
}  # fmt: skip
OFFSET = {"consumerGroup": "stock", "topic": "orders", "queueId": "0", "commitOffset": "0"}
ABSENT = {"clientId": "absent", "clientAddr": "absent"}  # a member that would be asked would not answer
GROUP = {"group": "stock", "groupName": "stock", "consumerGroup": "stock", "topic": "orders", **ABSENT}
ACL = {"policies": [{"entries": [{"resource": "Topic:absent", "actions": ["Pub"], "decision": "Deny"}]}]}
HEARTBEAT = {
    "clientID": "client",
    "consumerDataSet": [{"groupName": "stock", "subscriptionDataSet": [{"topic": "orders", "subString": "*"}]}],
}


def requests(offset: int, message_id: str) -> dict[int, tuple[dict[str, str], bytes]]:
    """Return a request of each code about the topic orders, the group stock and a message of orders; other codes: of the group."""
    code = RequestCode
    scrap = {"topic": "scrap", "groupName": "scrap", "defaultTopic": "TBW102", "readQueueNums": "1"}
    return dict.fromkeys(REQUEST_NEEDS, (GROUP, b"")) | {
        code.SEND_MESSAGE: (SEND, b"x"),
        code.SEND_MESSAGE_V2: (SEND_V2, b"x"),
        code.SEND_BATCH_MESSAGE: ({**SEND_V2, "m": "true"}, b"x"),
        code.SEND_REPLY_MESSAGE: ({**SEND, "topic": "DefaultCluster_REPLY_TOPIC"}, b"x"),
        code.SEND_REPLY_MESSAGE_V2: (SEND_V2, b"x"),
        code.RECALL_MESSAGE: ({"topic": "orders", "recallHandle": message_id, "producerGroup": "shop"}, b""),
        code.CONSUMER_SEND_MSG_BACK: ({"group": "stock", "offset": str(offset), "delayLevel": "1"}, b""),
        code.END_TRANSACTION: (
            {
                "producerGroup": "shop", "tranStateTableOffset": "0", "commitLogOffset": str(offset),
                "commitOrRollback": "8",
            },
            b"",
        ),
        code.PULL_MESSAGE: (PULL, b""),
        code.LITE_PULL_MESSAGE: (PULL, b""),
        code.POP_MESSAGE: (POP, b""),
        code.NOTIFICATION: (POP, b""),
        code.POLLING_INFO: (POP, b""),
        code.LIST_IN_FLIGHT: ({**POP, "limit": "1"}, b""),
        code.ACK_MESSAGE: (HANDLE, b""),
        code.CHANGE_MESSAGE_INVISIBLETIME: (HANDLE, b""),
        code.BATCH_ACK_MESSAGE: ({}, b'{"acks":[{"c":"stock","t":"orders","q":0,"so":0,"pt":1,"b":""}]}'),
        code.QUERY_ASSIGNMENT: ({}, b'{"topic":"orders","consumerGroup":"stock","clientId":"client"}'),
        code.SET_MESSAGE_REQUEST_MODE: ({}, b'{"topic":"orders","consumerGroup":"stock","mode":"PULL"}'),
        code.UPDATE_CONSUMER_OFFSET: (OFFSET, b""),
        code.VIEW_MESSAGE_BY_ID: ({"offset": str(offset)}, b""),
        code.CONSUME_MESSAGE_DIRECTLY: ({**GROUP, "msgId": message_id}, b""),
        code.HEART_BEAT: ({}, json.dumps(HEARTBEAT).encode()),
        code.LOCK_BATCH_MQ: ({}, b'{"consumerGroup":"stock","clientId":"client","mqSet":[]}'),
        code.UNLOCK_BATCH_MQ: ({}, b'{"consumerGroup":"stock","clientId":"client","mqSet":[]}'),
        code.CLONE_GROUP_OFFSET: ({"srcGroup": "stock", "destGroup": "stock", "topic": "orders"}, b""),
        # What an admin may change here stays as it is.
        code.DELETE_TOPIC_IN_BROKER: (scrap, b""),
        code.UPDATE_AND_CREATE_TOPIC: (scrap, b""),
        code.DELETE_SUBSCRIPTIONGROUP: (scrap, b""),
        code.UPDATE_AND_CREATE_ACL_CONFIG: ({"accessKey": "unknown-account"}, b""),
        code.DELETE_ACL_CONFIG: ({"accessKey": "unknown-account"}, b""),
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ({}, b'{"groupName":"scrap"}'),
        **dict.fromkeys(
            (code.AUTH_CREATE_USER, code.AUTH_UPDATE_USER, code.AUTH_DELETE_USER, code.AUTH_GET_USER),
            ({"username": ""}, b"{}"),
        ),
        **dict.fromkeys(
            (code.AUTH_CREATE_ACL, code.AUTH_UPDATE_ACL, code.AUTH_DELETE_ACL, code.AUTH_GET_ACL),
            ({"subject": "User:operating-user", "resource": "Topic:absent"}, json.dumps(ACL).encode()),
        ),
        code.REQUEST_BATCH: ({}, encode_requests(code.GET_TOPIC_STATS_INFO, [{"topic": "orders"}])),
        code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: ({"globalWhiteAddrs": "10.9.9.9"}, b""),
    }  # fmt: skip


def frame(sender: Credentials | None, code: int, fields: dict[str, str], body: bytes, opaque: int) -> bytes:
    signed = signing.sign(sender, fields, body) if sender else fields
    return b"".join(commands.encode(code, opaque=opaque, flag=0, fields=signed, body=body))


async def responses(port: int, tls: ssl.SSLContext | None, frames: list[bytes]) -> dict[int, Command]:
    """Send frames in one write, and return their responses by `opaque`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    frames_in = FrameReader()
    received: dict[int, Command] = {}
    writer.write(b"".join(frames))
    while len(received) < len(frames):
        data = await asyncio.wait_for(reader.read(65536), 30)
        assert data, f"the broker closed the connection after {len(received)} of {len(frames)} responses"
        for command in map(commands.decode, frames_in.feed(data)):
            if command.is_response:  # members of groups receive requests, too
                received[command.opaque] = command
    writer.close()
    return received


def is_served(response: Command) -> bool:
    return response.code != ResponseCode.NO_PERMISSION


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of a broker with access control."""
    home = tmp_path_factory.mktemp("access")
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(FILE)
    users.save_users(SystemDisk(), str(home / "users.json"), users.checked_users(USERS))
    with LocalCluster(
        home,
        acl_enable=True,
        rocketmq_home=str(home),
        authentication_enabled=True,
        authorization_enabled=True,
        auth_config_path=str(home),
    ) as servers:
        yield int(servers.broker.addr.rpartition(":")[2])


@pytest.fixture(scope="module")
def samples(broker: int) -> dict[int, tuple[dict[str, str], bytes]]:
    async def send() -> Command:
        return (await responses(broker, None, [frame(ADMIN, RequestCode.SEND_MESSAGE, SEND, b"body", 0)]))[0]

    stored = asyncio.run(send())
    assert stored.code == 0, stored.remark
    message_id = stored.field_map()["msgId"]
    return requests(ids.parse_offset_message_id(message_id)[1], message_id)


def any_certificate() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@pytest.mark.parametrize("path", ["port", "VIP port", "TLS", "runs"])
def test_each_request_is_served_and_denied_as_the_page_says(
    path: str, broker: int, samples: dict[int, tuple[dict[str, str], bytes]]
) -> None:
    port, tls = broker - 2 if path == "VIP port" else broker, any_certificate() if path == "TLS" else None
    copies = 3 if path == "runs" else 1
    codes = [code for code in REQUEST_NEEDS if path != "VIP port" or code not in PULLS]

    def frames(code: int, sender: Credentials | None) -> list[bytes]:
        return [frame(sender, code, *samples[code], code * copies + copy) for copy in range(copies)]

    async def verdicts(sent: list[bytes]) -> dict[int, bool]:
        received = await responses(port, tls, sent)
        by_code = {code: {is_served(received[code * copies + copy]) for copy in range(copies)} for code in codes}
        assert [code for code in codes if len(by_code[code]) > 1] == []
        return {code: by_code[code] == {True} for code in codes}

    async def work() -> dict[str, dict[int, bool]]:
        by_sender = {
            name: await verdicts([data for code in codes for data in frames(code, sender)])
            for name, sender in SENDERS.items()
        }
        # Served above, as the reader's or as the admin's: the same bytes.
        readable = by_sender["reader"]
        overheard = [data for code in codes for data in frames(code, SENDERS["reader"] if readable[code] else ADMIN)]
        return by_sender | {REPLAYED: await verdicts(overheard)}

    by_sender = asyncio.run(work())
    lines = [
        f"| {code} | {code_name(code)} | {REQUEST_NEEDS[code].text} | {REQUEST_NEEDS[code].policy} | "
        + " | ".join("yes" if by_sender[name][code] else "" for name in COLUMNS)
        + " |"
        for code in sorted(codes)
    ]
    page = PAGE.read_text(encoding="utf-8").splitlines()
    missing = [line for line in lines if line not in page]
    assert HEADER in page, f"print {HEADER} and the lines into {PAGE.name}"
    assert not missing, "print these lines into docs/access.md, if they are right:\n" + "\n".join(missing)


def test_the_page_has_no_other_codes() -> None:
    table = PAGE.read_text(encoding="utf-8").partition(HEADER)[2].partition("\n\n")[0].splitlines()
    codes = [line.split("|")[1].strip() for line in table if line.startswith("| ") and line[2].isdigit()]
    assert codes == [str(int(code)) for code in sorted(REQUEST_NEEDS)]


@contextlib.contextmanager
def counted_turns() -> Iterator[list[int]]:
    """Return a list to which the turns of brokers append the number of requests that they serve."""
    served: list[int] = []

    def counting(serve: Any) -> Any:
        def count(self: Any, *args: Any) -> ServedTurn | None:
            turn: ServedTurn | None = serve(self, *args)
            served.append(turn.requests if turn else 0)
            return turn

        return count

    with (
        mock.patch.object(SendTurns, "serve", counting(SendTurns.serve)),
        mock.patch.object(PullTurns, "serve", counting(PullTurns.serve)),
    ):
        yield served


BATCH = batch.encode([batch.BatchEntry(0, b"x", "")])
RUNS = {
    RequestCode.SEND_MESSAGE: (SEND, b"x"),
    RequestCode.SEND_MESSAGE_V2: (SEND_V2, b"x"),
    RequestCode.SEND_BATCH_MESSAGE: ({**SEND_V2, "m": "true"}, BATCH),
    RequestCode.PULL_MESSAGE: ({**PULL, "sysFlag": "4"}, b""),
    RequestCode.LITE_PULL_MESSAGE: ({**PULL, "sysFlag": "4"}, b""),
}


def test_each_code_of_runs_is_tested() -> None:
    assert RUNS.keys() == RUN_FIELDS.keys()


@pytest.mark.usefixtures("samples")
@pytest.mark.parametrize("tls", [None, any_certificate()], ids=["plain", "TLS"])
@pytest.mark.parametrize("code", RUNS)
def test_signed_runs_are_served_by_turns(code: int, tls: ssl.SSLContext | None, broker: int) -> None:
    sender = SENDERS["reader" if code in PULLS else "writer"]
    frames = [frame(sender, code, *RUNS[code], opaque) for opaque in range(20)]
    with counted_turns() as served:
        received = asyncio.run(responses(broker, tls, frames))
    assert {response.code for response in received.values()} == {0}
    assert sum(served) == 20


@pytest.mark.usefixtures("samples")
@pytest.mark.parametrize("code", RUNS)
@pytest.mark.parametrize("sender", ["anonymous", "wrong signature", "other group"])
@pytest.mark.parametrize("tls", [None, any_certificate()], ids=["plain", "TLS"])
def test_a_refused_request_in_a_run_is_the_only_one(
    code: int, sender: str, tls: ssl.SSLContext | None, broker: int
) -> None:
    permitted = SENDERS["reader" if code in PULLS else "writer"]
    frames = [frame(SENDERS[sender] if opaque == 9 else permitted, code, *RUNS[code], opaque) for opaque in range(20)]
    with counted_turns() as served:
        received = asyncio.run(responses(broker, tls, frames))
    assert [opaque for opaque, response in received.items() if not is_served(response)] == [9]
    assert sum(served) == 19

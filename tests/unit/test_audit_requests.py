"""Each code of broker and name server is a change, traffic or a read, and changes name what they change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ariane.audit.audited_requests import CHANGES, READS, TRAFFIC, resource_of
from ariane.broker.access.request_permissions import REQUEST_NEEDS
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.protocol.codes import RequestCode as Code
from ariane.protocol.codes import code_name
from ariane.protocol.requests.audit import request_name


def test_each_request_code_is_in_one_set(tmp_path: Path) -> None:
    async def codes_of_a_name_server() -> set[int]:
        config = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json"))
        async with NameServer(config) as server:
            return set(server.connections._handlers)

    codes = REQUEST_NEEDS.keys() | asyncio.run(codes_of_a_name_server())
    counts = {code: (code in CHANGES) + (code in TRAFFIC) + (code in READS) for code in codes}
    unclear = [code_name(code) for code, count in counts.items() if count != 1]
    assert unclear == [], "put each code into one of the sets of ariane.audit.audited_requests"
    assert CHANGES.keys() | TRAFFIC | READS == codes


@pytest.mark.parametrize(
    ("code", "fields", "body", "resource"),
    [
        (Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}, b"", "topic:orders"),
        (Code.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "shop", "secretKey": "a-secret"}, b"", "account:shop"),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"stock"}', "group:stock"),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b"garbage", ""),
        (Code.UPDATE_BROKER_CONFIG, {}, b"a=1\ntls.server.keyPassword=x", "setting:a setting:tls.server.keyPassword"),
        (Code.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "orders", "group": "stock"}, b"", "topic:orders group:stock"),
        (Code.SEND_MESSAGE_V2, {"b": "orders"}, b"", "topic:orders"),
        (Code.PULL_MESSAGE, {"topic": "orders", "consumerGroup": "stock"}, b"", "topic:orders group:stock"),
        (Code.GET_BROKER_CONFIG, {}, b"", ""),
    ],
)
def test_resources_of_requests(code: int, fields: dict[str, str], body: bytes, resource: str) -> None:
    assert resource_of(code, fields, body) == resource


def test_requests_are_named_by_name_or_number() -> None:
    assert request_name("17") == request_name("update_and_create_topic") == "UPDATE_AND_CREATE_TOPIC"
    assert request_name("99999") == "99999"

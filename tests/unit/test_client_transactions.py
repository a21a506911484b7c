"""Transaction producer: half messages, checks, and their trace records."""

from __future__ import annotations

import asyncio

import pytest

from ariane.client import transaction_producer as client
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.hooks import LocalState, TransactionEnd
from ariane.client.instance.settings import ProducerSettings
from ariane.client.tracing.trace_records import events_of_transaction_end
from ariane.client.transaction_producer import TransactionProducer, prepare_half_message
from ariane.errors import ConfigError, MessageRefused
from ariane.model.message import Message
from ariane.net.connection import Peer
from ariane.protocol import trace_codec as trace_text
from ariane.protocol.command import Command
from ariane.protocol.records import properties
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.messaging import EndTransactionHeader

SETTINGS = ProducerSettings()
PEER = Peer(1, "127.0.0.1", 10911, b"\x7f\0\0\1\0\0\x2a\x9f")


def message(**more) -> Message:
    return Message(topic="T", body=b"x", tags="a", **more)


def test_a_half_message_is_marked_in_properties_and_flags() -> None:
    out = prepare_half_message(message(properties={"mine": "1"}), "ID", "P", SETTINGS, 7)
    assert properties.decode(out.properties) == {
        "UNIQ_KEY": "ID", "WAIT": "true", "TAGS": "a", "mine": "1",
        "TRAN_MSG": "true", "PGROUP": "P", "CHECK_IMMUNITY_TIME_IN_SECONDS": "7",
    }  # fmt: skip
    assert (out.sys_flag, out.topic, out.body) == (4, "T", b"x")
    large = prepare_half_message(Message(topic="T", body=b"x" * 10_000), "ID", "P", SETTINGS)
    assert (large.sys_flag & 0xC, large.sys_flag & 1, len(large.body) < 10_000) == (4, 1, True)


@pytest.mark.parametrize(
    ("refused", "immunity", "why"),
    [
        (message(delay_level=2), None, "cannot be delayed"),
        (message(), -1, "immunity = -1"),
        (message(properties={"p": "x" * 32_725}), None, "properties"),
        (message(properties={"TRAN_MSG": "false"}), None, "reserved"),
    ],
)
def test_an_invalid_half_message_is_rejected(refused: Message, immunity: float | None, why: str) -> None:
    with pytest.raises((MessageRefused, ConfigError), match=why):
        prepare_half_message(refused, "ID", "P", SETTINGS, immunity)


def test_an_instance_accepts_one_transaction_producer_per_group() -> None:
    instance = ClientInstance("127.0.0.1:1")
    instance.register_transaction_check("P", lambda command, peer: None)
    with pytest.raises(ConfigError, match="already"):
        instance.register_transaction_check("P", lambda command, peer: None)
    instance.register_transaction_check("P", None)
    instance.register_transaction_check("P", lambda command, peer: None)


def test_checks_beyond_the_limit_are_dropped_and_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PENDING_CHECKS_MAX", 2)
    producer = TransactionProducer("127.0.0.1:1", "P", check=lambda message: LocalState.COMMIT)
    for _ in range(3):
        producer._on_check_request(Command(39), PEER)
    assert "dropping one from 127.0.0.1:10911" in caplog.text
    with pytest.raises(ConfigError, match="checks_at_once"):
        TransactionProducer("127.0.0.1:1", "P", check=lambda message: LocalState.COMMIT, checks_at_once=0)


@pytest.mark.parametrize(
    ("answer", "expected", "raises"),
    [
        (lambda about: LocalState.COMMIT, LocalState.COMMIT, False),
        (lambda about: None, LocalState.UNKNOWN, False),
        (lambda about: 8, LocalState.UNKNOWN, False),
        (lambda about: 1 / 0, LocalState.UNKNOWN, True),
    ],
)
def test_a_result_that_is_no_local_state_counts_as_unknown(answer, expected: LocalState, raises: bool) -> None:
    async def later(about: object) -> object:
        return answer(about)

    for ask in (answer, later):
        state, error = asyncio.run(client._local_state(ask, None, "it"))
        assert (state, error is not None) == (expected, raises)


def test_transaction_ends_are_traced_as_in_4_9_4_except_those_of_trace_messages() -> None:
    ending = TransactionEnd(
        group="P", topic="T", tags="a", keys="k1 k2", region="R", message_id="ID", transaction_id="TX",
        state=LocalState.UNKNOWN, from_check=True, broker_addr="a:1", ended_ms=5,
    )  # fmt: skip
    (record,) = events_of_transaction_end(ending, "RMQ_SYS_TRACE_TOPIC")
    assert trace_text.encode(record) == (
        "\x01".join(["EndTransaction", "5", "R", "P", "T", "ID", "a", "k1 k2", "a:1", "2", "TX", "UNKNOW", "true"])
        + "\x02"
    )
    assert events_of_transaction_end(ending, "T") == []


def test_a_state_is_printed_by_name_and_sent_as_a_number() -> None:
    """`print(result.state)` printed 8."""
    assert [f"{state} {state!s}" for state in LocalState] == ["UNKNOWN UNKNOWN", "COMMIT COMMIT", "ROLLBACK ROLLBACK"]
    header = EndTransactionHeader("P", 0, 0, LocalState.COMMIT)
    assert encode_header(header)["commitOrRollback"] == "8"

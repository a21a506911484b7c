"""Transactions over sockets: our broker, our producers, and requests as other clients send them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.client import (
    ConsumerSettings,
    LocalState,
    PushConsumer,
    SendResult,
    SendStatus,
    TraceSettings,
    TransactionProducer,
)
from ariane.client.instance.hooks import TransactionEnd
from ariane.cluster.admin import Admin
from ariane.cluster.messages.transaction_admin import HalfMessage
from ariane.errors import ConfigError, MessageRefused, NotFound, ReplyError
from ariane.model import ids
from ariane.model.message import Message, ReceivedMessage
from ariane.model.topic import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from ariane.net.connection import Peer
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties, record
from ariane.protocol.records.record import Record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.clients import HeartbeatData, ProducerData
from ariane.protocol.requests.messaging import (
    COMMIT,
    ROLLBACK,
    SUBSCRIPTION,
    CheckTransactionState,
    EndTransactionHeader,
    OffsetResponse,
    PullMessage,
    QueryConsumerOffset,
    ResumeCheckHalfMessage,
    SendMessage,
    SendMessageResponse,
)
from ariane.testing import AsyncLocalCluster

FAST = ConsumerSettings(commit_interval=0.2)
EAGER = {"transaction_time_out": 100, "transaction_check_interval": 150}
PATIENCE_S = 20.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work, 60)

    asyncio.run(bounded())


class Inbox:
    """Listener that records its messages."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    async def __call__(self, messages: list[ReceivedMessage]) -> None:
        self.messages.extend(messages)

    @property
    def bodies(self) -> list[bytes]:
        return sorted(message.body for message in self.messages)


def always(state: LocalState) -> Callable[[object], LocalState]:
    return lambda about: state


def text(body: bytes, **more: Any) -> Message:
    return Message(topic="T", body=body, tags="a", keys=[body.decode()], **more)


# --- our producer ---


def test_a_commit_is_delivered_once_and_a_rollback_never(tmp_path: Path) -> None:
    async def work() -> None:
        inbox, reported, seen = Inbox(), [], []

        def execute(sent: SendResult) -> LocalState:
            seen.append(sent)
            return LocalState.ROLLBACK if len(seen) % 2 else LocalState.COMMIT

        async with (
            AsyncLocalCluster(tmp_path) as servers,
            TransactionProducer(
                servers.namesrv, "P", check=always(LocalState.UNKNOWN), end_hooks=[reported.append]
            ) as item,
            PushConsumer(servers.namesrv, "C", {"T": "*"}, inbox, start="first", settings=FAST),
        ):
            results = [await item.send_in_transaction(text(b"%d" % number), execute) for number in range(10)]
            await until(lambda: len(inbox.messages) >= 5)
            await asyncio.sleep(0.2)
            assert [result.state for result in results] == [LocalState.ROLLBACK, LocalState.COMMIT] * 5
            assert [result.sent for result in results] == seen
            assert inbox.bodies == [b"1", b"3", b"5", b"7", b"9"]
            committed = {result.sent.message_id: result for result in results[1::2]}
            for message in inbox.messages:
                assert message.message_id in committed
                assert (message.tags, message.keys, message.sys_flag) == ("a", (message.body.decode(),), 8)
            assert all(isinstance(event, TransactionEnd) and not event.from_check for event in reported)
            assert [event.message_id for event in reported] == [result.sent.message_id for result in results]

    run(work())


def test_a_block_commits_unless_it_raises_or_rolls_back(tmp_path: Path) -> None:
    async def work() -> None:
        inbox, ends = Inbox(), []
        async with (
            AsyncLocalCluster(tmp_path) as servers,
            TransactionProducer(
                servers.namesrv, "P", check=always(LocalState.UNKNOWN), end_hooks=[ends.append]
            ) as producer,
            PushConsumer(servers.namesrv, "C", {"T": "*"}, inbox, start="first", settings=FAST),
        ):
            async with producer.transaction("T", b"paid", keys=["K"]) as transaction:
                paid_id = transaction.id
            async with producer.transaction("T", b"refused") as transaction:
                transaction.rollback()
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction("T", b"raises"):
                    _ = 1 / 0
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction("T", b"refused and raises") as transaction:
                    transaction.rollback()
                    _ = 1 / 0
            async with producer.transaction(text(b"later")) as transaction:
                transaction.leave_open()
            await until(lambda: len(inbox.messages) == 1)
            assert (inbox.messages[0].message_id, inbox.messages[0].keys) == (paid_id, ("K",))
            commit, rollback, unknown = LocalState.COMMIT, LocalState.ROLLBACK, LocalState.UNKNOWN
            assert [event.state for event in ends] == [commit, rollback, unknown, rollback, unknown]

    run(work())


def test_undecided_transactions_are_checked_until_they_are_decided(tmp_path: Path) -> None:
    checks: Counter[bytes] = Counter()

    async def check(message: ReceivedMessage) -> LocalState:
        checks[message.body] += 1
        assert message.topic == "T"
        if message.body == b"raises":
            raise RuntimeError("no database")
        if checks[message.body] < 3:
            return LocalState.UNKNOWN
        return LocalState.COMMIT if message.body == b"commit" else LocalState.ROLLBACK

    async def fails(sent: SendResult) -> LocalState:
        raise RuntimeError("the database is gone")

    async def work() -> None:
        inbox = Inbox()
        async with (
            AsyncLocalCluster(tmp_path, **EAGER) as servers,
            TransactionProducer(servers.namesrv, "P", check=check) as producer,
            PushConsumer(servers.namesrv, "C", {"T": "*"}, inbox, start="first", settings=FAST),
        ):
            for body in (b"commit", b"rollback"):
                await producer.send_in_transaction(text(body), always(LocalState.UNKNOWN))
            failed = await producer.send_in_transaction(text(b"raises"), fails)
            assert (failed.state, type(failed.error)) == (LocalState.UNKNOWN, RuntimeError)
            await until(lambda: checks[b"raises"] >= 6 and len(inbox.messages) >= 1)
            await asyncio.sleep(0.2)
            assert inbox.bodies == [b"commit"]
            assert (checks[b"commit"], checks[b"rollback"]) == (3, 3)

    run(work())


def test_late_answers_to_several_checks_commit_once(tmp_path: Path) -> None:
    """Every copy created by a check is answered in turn: 4.9.4 delivers such a message more than once."""

    async def work() -> None:
        async with Asking(tmp_path, transaction_time_out=1, transaction_check_interval=60) as peer:
            first = await peer.half("U1")
            await until(lambda: len(peer.questions) >= 4)
            ends = [(first.queue_offset, ids.parse_offset_message_id(first.message_id)[1])]
            ends += [(item.tran_state_table_offset, item.commit_log_offset) for item, _ in peer.questions[:4]]
            for half, offset in ends:
                assert (await peer.end(half, offset, COMMIT)).code == 0
            for half, offset in reversed(ends):
                assert (await peer.end(half, offset, ROLLBACK)).code == 0
            count = len(peer.questions)
            await asyncio.sleep(0.3)
            assert len(peer.questions) == count
            assert [item.body for item in await peer.pull("T")] == [b"body"]
            assert len(await peer.pull(OP_HALF_TOPIC)) == 1

    run(work())


def test_half_messages_are_discarded_after_the_maximum_checks_and_can_be_resumed(tmp_path: Path) -> None:
    async def work() -> None:
        settings = {"transaction_time_out": 1, "transaction_check_interval": 30, "transaction_check_max": 3}
        async with Asking(tmp_path, **settings) as peer:
            await peer.half("U1")
            aside: list[Record] = []
            while not aside:
                await asyncio.sleep(0.02)
                aside = await peer.pull(CHECK_MAX_TIME_TOPIC)
            await asyncio.sleep(0.1)
            assert len(peer.questions) == 3
            (item,) = await peer.pull(CHECK_MAX_TIME_TOPIC)
            table = item.property_map()
            assert (item.body, table["TRANSACTION_CHECK_TIMES"], table["REAL_TOPIC"]) == (b"body", "3", "T")
            assert "TRAN_PREPARED_QUEUE_OFFSET" not in table
            resumed = await peer.resume(item.offset)
            assert resumed.code == 0
            await until(lambda: len(peer.questions) >= 4)
            question, check = peer.questions[3]
            assert check.property_map()["TRANSACTION_CHECK_TIMES"] == "1"
            assert (await peer.end(question.tran_state_table_offset, question.commit_log_offset, COMMIT)).code == 0
            assert [item.body for item in await peer.pull("T")] == [b"body"]
            refused = await peer.resume(question.commit_log_offset)
            assert (refused.code, "is not open" in str(refused.remark)) == (1, True)
            (committed,) = await peer.pull("T")
            assert (await peer.resume(committed.offset)).code == 1

    run(work())


def test_an_immune_half_message_does_not_delay_others(tmp_path: Path) -> None:
    async def work() -> None:
        async with Asking(tmp_path, transaction_time_out=1, transaction_check_interval=40) as peer:
            await peer.half("immune", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
            await peer.half("soon", CHECK_IMMUNITY_TIME_IN_SECONDS="1")
            await peer.half("plain")
            await until(lambda: len(peer.asked("plain")) >= 2)
            assert not peer.asked("soon")
            await until(lambda: len(peer.asked("soon")) >= 2)
            assert not peer.asked("immune")

    run(work())


def is_checked_twice(half: Record) -> bool:
    return half.property_map().get("TRANSACTION_CHECK_TIMES") == "2"


def test_only_open_transactions_are_checked_after_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        store = {"transaction_time_out": 1, "transaction_check_interval": 50, "transaction_check_max": 1000}
        async with Asking(tmp_path, **store, group="nobody") as peer:
            for number in range(40):
                sent = await peer.half(f"U{number}", group="P")
                offset = ids.parse_offset_message_id(sent.message_id)[1]
                if number % 4:
                    decision = COMMIT if number % 4 == 1 else ROLLBACK
                    assert (await peer.end(sent.queue_offset, offset, decision)).code == 0
            # Two rounds without a response of a producer: each stores a copy with an increased count.
            while sum(map(is_checked_twice, await peer.pull(HALF_TOPIC, most=10_000))) < 10:
                await asyncio.sleep(0.02)
        async with Asking(tmp_path, **store) as peer:
            await until(lambda: all(peer.asked(f"U{number}") for number in range(0, 40, 4)))
            assert {table["UNIQ_KEY"] for table in peer.tables()} == {f"U{number}" for number in range(0, 40, 4)}
            for number in range(0, 40, 4):
                question, check = peer.asked(f"U{number}")[-1]
                assert int(check.property_map()["TRANSACTION_CHECK_TIMES"]) >= 3  # those before the restart count
                await peer.end(question.tran_state_table_offset, question.commit_log_offset, COMMIT)
        async with Asking(tmp_path, **store) as peer:
            await asyncio.sleep(0.3)
            assert not peer.questions
            bodies = Counter(stored_record.property_map()["UNIQ_KEY"] for stored_record in await peer.pull("T"))
            assert bodies == Counter([f"U{number}" for number in range(40) if number % 4 in (0, 1)])
            halves = await peer.pull(HALF_TOPIC, most=10_000)
            header = QueryConsumerOffset(TRANSACTION_GROUP, HALF_TOPIC, 0)
            low = decode_header(await peer.call(RequestCode.QUERY_CONSUMER_OFFSET, header), OffsetResponse).offset
            assert low == len(halves)

    run(work())


# --- requests as they come from others ---


class Asking:
    """A broker and a producer of group P that speaks the protocol directly and records the checks it receives."""

    def __init__(self, home: Path, *, group: str = "P", **settings: object) -> None:
        values: dict[str, Any] = {
            "mapped_file_size_commit_log": 1 << 20,
            "mapped_file_size_consume_queue": 20_000,
            "broker_name": "broker-a",
            "broker_ip1": "127.0.0.1",
            "bind_address": "127.0.0.1",
            "listen_port": 0,
            "namesrv_addr": "",
            **settings,
        }
        self._broker = Broker(BrokerConfig(store_path_root_dir=str(home), **values))
        self._peers = ConnectionPool({RequestCode.CHECK_TRANSACTION_STATE: self._asked})
        self._group = group
        self.questions: list[tuple[CheckTransactionState, Record]] = []

    def _asked(self, command: Command, peer: Peer) -> None:
        self.questions.append((decode_header(command, CheckTransactionState), record.decode(command.body)))

    async def __aenter__(self) -> Asking:
        await self._broker.__aenter__()
        await self._peers.__aenter__()
        body = fastjson.write(HeartbeatData("me", (), (ProducerData(self._group),)))
        assert (await self.call(RequestCode.HEART_BEAT, None, body)).code == 0
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._peers.__aexit__(None, None, None)
        await self._broker.__aexit__(None, None, None)

    async def call(self, code: int, header: Any, body: bytes = b"") -> Command:
        return await self._peers.request(self._broker.addr, code, header, body)

    async def half(self, unique: str, *, group: str = "P", **own: str) -> SendMessageResponse:
        table = {"UNIQ_KEY": unique, "TRAN_MSG": "true", "PGROUP": group, "WAIT": "true", "TAGS": "a", **own}
        header = SendMessage(group, "T", "TBW102", 1, 0, 4, 1, 7, properties.encode(table))
        answer = await self.call(RequestCode.SEND_MESSAGE_V2, header, b"body")
        assert answer.code == 0, answer.remark
        return decode_header(answer, SendMessageResponse)

    async def end(self, half: int, offset: int, decision: int, group: str = "P") -> Command:
        return await self.call(
            RequestCode.END_TRANSACTION, EndTransactionHeader(group, half, offset, decision, msg_id="U")
        )

    async def resume(self, offset: int) -> Command:
        message_id = ids.offset_message_id(b"\x7f\0\0\1\0\0\0\1", offset)
        return await self.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessage(message_id))

    async def pull(self, topic: str, most: int = 100) -> list[Record]:
        """Return the messages of queue 0, about `most` at most; an empty list if the topic does not exist."""
        results: list[Record] = []
        while len(results) < most:
            header = PullMessage("G", topic, 0, len(results), 32, SUBSCRIPTION, 0, 0, "*", 0, None)
            answer = await self.call(RequestCode.PULL_MESSAGE, header)
            if answer.code != 0:
                break
            results += record.decode_all(answer.body)
        return results

    def asked(self, unique: str) -> list[tuple[CheckTransactionState, Record]]:
        return [question for question in self.questions if question[1].property_map()["UNIQ_KEY"] == unique]

    def tables(self) -> list[dict[str, str]]:
        return [asked.property_map() for _, asked in self.questions]


def test_transaction_records_match_rocketmq(tmp_path: Path) -> None:
    async def work() -> None:
        async with Asking(tmp_path, transaction_check_interval=60_000) as peer:
            sent = await peer.half("U1", MINE="x", TRAN_PREPARED_QUEUE_OFFSET="7", TRANSACTION_CHECK_TIMES="9")
            (half,) = await peer.pull(HALF_TOPIC)
            offset = ids.parse_offset_message_id(sent.message_id)[1]
            assert (half.offset, half.queue_offset, half.queue_id) == (offset, sent.queue_offset, 0)
            assert (half.sys_flag, half.flag, half.born_ms, half.prepared_offset) == (0, 7, 1, 0)
            table = {
                "UNIQ_KEY": "U1", "TRAN_MSG": "true", "PGROUP": "P", "WAIT": "true", "TAGS": "a", "MINE": "x",
                "CLUSTER": "DefaultCluster", "REAL_TOPIC": "T", "REAL_QID": "0",
            }  # fmt: skip
            assert half.property_map() == table
            assert not await peer.pull("T")
            assert (await peer.end(0, offset, COMMIT)).code == 0
            (op,) = await peer.pull(OP_HALF_TOPIC)
            assert (op.body, op.property_map(), op.sys_flag) == (b"0", {"TAGS": "d", "WAIT": "true"}, 0)
            (item,) = await peer.pull("T")
            assert (item.body, item.sys_flag, item.flag, item.born_ms) == (b"body", 8, 7, 1)
            assert (item.prepared_offset, item.property_map()) == (offset, table)
            assert op.offset == item.offset + item.size

    run(work())


def test_end_transaction_with_a_wrong_reference_is_rejected_with_rocketmq_remarks(tmp_path: Path) -> None:
    async def work() -> None:
        async with Asking(tmp_path) as peer:
            sent = await peer.half("U1")
            offset = ids.parse_offset_message_id(sent.message_id)[1]
            answers = [
                await peer.end(0, offset, COMMIT, group="Other"),
                await peer.end(1, offset, COMMIT),
                await peer.end(0, offset + 1, COMMIT),
                await peer.end(0, 1 << 40, ROLLBACK),
                await peer.end(0, -5, ROLLBACK),
            ]
            assert [(answer.code, answer.remark) for answer in answers] == [
                (1, "The producer group wrong"),
                (1, "The transaction state table offset wrong"),
                (1, "Find prepared transaction message failed"),
                (1, "Find prepared transaction message failed"),
                (1, "Find prepared transaction message failed"),
            ]
            assert not await peer.pull(OP_HALF_TOPIC)
            assert (await peer.end(0, offset, COMMIT)).code == 0
            (item,) = await peer.pull("T")
            answer = await peer.end(0, item.offset, COMMIT)
            assert (answer.code, answer.remark) == (1, "Find prepared transaction message failed")

    run(work())


def test_unsupported_transactional_messages_are_rejected(tmp_path: Path) -> None:
    async def work() -> None:
        async with Asking(tmp_path / "a") as peer:
            header = SendMessage("P", "T", "TBW102", 1, 0, 4, 1, 0, "TRAN_MSG\x01true\x02DELAY\x013")
            answer = await peer.call(RequestCode.SEND_MESSAGE_V2, header, b"x")
            assert (answer.code, "cannot be delayed" in str(answer.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
        async with Asking(tmp_path / "b", reject_transaction_message=True) as peer:
            header = SendMessage("P", "T", "TBW102", 1, 0, 4, 1, 0, "TRAN_MSG\x01true")
            answer = await peer.call(RequestCode.SEND_MESSAGE_V2, header, b"x")
            assert (answer.code, "is forbidden" in str(answer.remark)) == (ResponseCode.NO_PERMISSION, True)

    run(work())


def test_with_synchronous_flush_an_end_is_answered_once_it_is_on_disk(tmp_path: Path) -> None:
    async def work() -> None:
        settings = {"flush_disk_type": "SYNC_FLUSH", "transaction_time_out": 1, "transaction_check_interval": 50}
        async with Asking(tmp_path, **settings) as peer:
            await peer.half("U1")
            await until(lambda: len(peer.questions) >= 2)
            question, _ = peer.questions[-1]
            assert (await peer.end(question.tran_state_table_offset, question.commit_log_offset, COMMIT)).code == 0
            assert [message.body for message in await peer.pull("T")] == [b"body"]

    run(work())


def test_checks_rotate_among_the_producers_of_the_group(tmp_path: Path) -> None:
    async def work() -> None:
        checks: list[Counter[str]] = [Counter(), Counter()]

        def checker(number: int) -> Callable[[ReceivedMessage], LocalState]:
            def check(message: ReceivedMessage) -> LocalState:
                checks[number][message.message_id] += 1
                return LocalState.UNKNOWN

            return check

        async with (
            AsyncLocalCluster(tmp_path, **EAGER) as servers,
            TransactionProducer(servers.namesrv, "P", check=checker(0)) as item,
            TransactionProducer(servers.namesrv, "P", check=checker(1)),
        ):
            await item.send_in_transaction(text(b"x"), always(LocalState.UNKNOWN))
            await until(lambda: all(sum(counter.values()) >= 2 for counter in checks))

    run(work())


def test_traces_contain_the_half_message_and_its_end(tmp_path: Path) -> None:
    async def work() -> None:
        traces, inbox = TraceSettings(flush_interval=0.05), Inbox()
        async with AsyncLocalCluster(tmp_path, trace_topic_enable=True, **EAGER) as servers:
            async with TransactionProducer(
                servers.namesrv, "P", check=always(LocalState.COMMIT), trace=traces
            ) as producer:
                done = await producer.send_in_transaction(text(b"x"), always(LocalState.UNKNOWN))
                await until(lambda: producer.trace is not None and producer.trace.sent >= 3)
            async with PushConsumer(
                servers.namesrv, "C", {"RMQ_SYS_TRACE_TOPIC": "*"}, inbox, start="first", settings=FAST
            ):
                await until(lambda: sum(body.count(b"\x02") for body in inbox.bodies) >= 3)
        records = [one.split("\x01") for one in b"".join(inbox.bodies).decode().split("\x02") if one]
        (pub,) = [one for one in records if one[0] == "Pub"]
        ends = sorted((one for one in records if one[0] == "EndTransaction"), key=lambda one: one[12])
        assert (pub[5], pub[11]) == (done.sent.message_id, "1")
        assert [(one[5], one[9], one[11], one[12]) for one in ends] == [
            (done.sent.message_id, "2", "UNKNOW", "false"),
            (done.sent.message_id, "2", "COMMIT_MESSAGE", "true"),
        ]

    run(work())


def test_the_client_rejects_messages_unsupported_in_transactions(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            AsyncLocalCluster(tmp_path, reject_transaction_message=True) as servers,
            TransactionProducer(servers.namesrv, "P", check=always(LocalState.COMMIT)) as producer,
        ):
            for message in (text(b"x", delay_level=1), text(b"x", delay=1), text(b"")):
                with pytest.raises(MessageRefused):
                    await producer.send_in_transaction(message, always(LocalState.COMMIT))
            with pytest.raises(ConfigError, match="immunity"):
                await producer.send_in_transaction(text(b"x"), always(LocalState.COMMIT), immunity=-1)
            with pytest.raises(ReplyError, match="is forbidden"):
                await producer.send_in_transaction(text(b"x"), always(LocalState.COMMIT))
            assert (await producer.send(text(b"plain"))).status is SendStatus.SEND_OK

    run(work())


# --- what operators see ---


def test_open_and_discarded_half_messages_are_listed(tmp_path: Path) -> None:
    async def work() -> None:
        settings = {"transaction_time_out": 100, "transaction_check_interval": 100, "transaction_check_max": 2}
        states: dict[str, LocalState] = {}
        async with (
            AsyncLocalCluster(tmp_path, **settings) as servers,
            TransactionProducer(
                servers.namesrv, "P", check=lambda message: states.get(message.message_id, LocalState.UNKNOWN)
            ) as producer,
            Admin(servers.namesrv) as admin,
        ):
            unknown = always(LocalState.UNKNOWN)
            waits = await producer.send_in_transaction(text(b"waits"), unknown, immunity=3600)
            lost = await producer.send_in_transaction(text(b"lost"), unknown)
            await producer.send_in_transaction(text(b"done"), always(LocalState.COMMIT))
            aside: list[HalfMessage] = []
            async with asyncio.timeout(PATIENCE_S):
                while not aside:
                    await asyncio.sleep(0.05)
                    (broker,) = (await admin.list_check_limit_exceeded()).brokers
                    aside = broker.messages
            (broker,) = (await admin.list_open_transactions()).brokers
            assert (broker.broker, broker.addr, broker.total) == ("broker-a", servers.broker.addr, 1)
            (half,) = broker.messages
            assert (half.topic, half.group, half.unique_key, half.keys) == ("T", "P", waits.sent.message_id, "waits")
            assert (half.checks, half.immunity_s, half.body_size) == (0, "3600", 5)
            assert half.first_stored_ms == half.stored_ms
            assert half.offset_message_id == waits.sent.offset_message_id
            assert [(item.unique_key, item.checks) for item in aside] == [(lost.sent.message_id, 2)]

            states[lost.sent.message_id] = LocalState.COMMIT
            await admin.resume_checks(lost.sent.message_id)
            inbox = Inbox()
            async with PushConsumer(servers.namesrv, "C", {"T": "*"}, inbox, start="first", settings=FAST):
                await until(lambda: len(inbox.messages) >= 2)
            assert inbox.bodies == [b"done", b"lost"]

            for number in range(5):
                await producer.send_in_transaction(text(b"%d" % number), unknown, immunity=3600)
            (broker,) = (await admin.list_open_transactions(cluster="DefaultCluster", limit=3)).brokers
            assert (broker.total, [half.keys for half in broker.messages]) == (6, ["waits", "0", "1"])
            with pytest.raises(NotFound, match="DefaultCluster"):
                await admin.list_open_transactions(cluster="Other")

    run(work())


def test_the_age_of_a_checked_half_message_is_that_of_its_first_copy(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            AsyncLocalCluster(tmp_path, **EAGER, transaction_check_max=1000) as servers,
            TransactionProducer(servers.namesrv, "P", check=always(LocalState.UNKNOWN)) as producer,
            Admin(servers.namesrv) as admin,
        ):
            await producer.send_in_transaction(text(b"x"), always(LocalState.UNKNOWN))
            (broker,) = (await admin.list_open_transactions()).brokers
            first_ms = broker.messages[0].stored_ms
            async with asyncio.timeout(PATIENCE_S):
                while broker.messages[0].checks < 3:
                    await asyncio.sleep(0.05)
                    (broker,) = (await admin.list_open_transactions()).brokers
            (half,) = broker.messages
            assert (half.first_stored_ms, half.stored_ms > first_ms, broker.total) == (first_ms, True, 1)

    run(work())

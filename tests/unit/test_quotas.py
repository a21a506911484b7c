"""Limits in total, per address and per account: the arithmetic with times as arguments, and connections without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ariane.broker.config.broker_config import BROKER_SETTINGS, BrokerConfig
from ariane.broker.lifecycle.write_protection import DELAYED_CODES, EXEMPT_CODES
from ariane.nameserver import handlers as nameserver
from ariane.net.connection import Connection, Handler, Peer, Reply
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.limits.quotas import IDLE_USAGES_MAX, LIMIT_KEYS, Quotas, describe_exceeded
from ariane.net.limits.token_bucket import TokenBucket
from ariane.protocol import command as commands
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.frame import FrameReader
from ariane.settings.limits import quota_limits

pytestmark = pytest.mark.usefixtures("untimed_ticks")

PING, PULL, HEARTBEAT = 7, 11, 34


def quotas(**limits: int) -> Quotas:
    result = Quotas()
    result.set_limits(limits)
    return result


# --- arithmetic ---


def test_a_bucket_fills_with_use_and_drains_at_the_rate() -> None:
    bucket = TokenBucket()
    assert bucket.add(100, 100, 1.0, now=50.0) == 0  # the amount of a second at once
    assert bucket.add(50, 100, 1.0, now=50.0) == pytest.approx(0.5)
    assert bucket.used(100, 1.0, now=50.5) == pytest.approx(100)
    assert bucket.used(100, 1.0, now=60.0) == 0
    assert bucket.add(1, 100, 1.0, now=60.0) == 0


def test_a_changed_limit_is_in_force_at_once() -> None:
    bucket = TokenBucket()
    assert bucket.add(1000, 100, 1.0, now=0.0) == pytest.approx(9.0)
    assert bucket.add(0, 1000, 1.0, now=0.0) == 0


def test_hourly_limits_drain_in_an_hour() -> None:
    bucket = TokenBucket()
    bucket.add(10, 10, 3600.0, now=0.0)
    assert bucket.used(10, 3600.0, now=1800.0) == pytest.approx(5)


def test_every_limit_has_a_setting_that_may_be_changed_while_the_broker_runs() -> None:
    for key in quota_limits(BrokerConfig()):
        assert key in BROKER_SETTINGS.changeable
    traffic = {
        key
        for (_, resource), key in LIMIT_KEYS.items()
        if resource in ("connections", "requests", "bytes_in", "bytes_out")
    }
    assert traffic <= quota_limits(BrokerConfig()).keys()


def test_connections_of_an_ipv6_network_count_together_and_others_do_not() -> None:
    limits = quotas(addressConnectionsMax=2)
    for number, ip in enumerate(("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1")):
        limits.open(number, ip)
        assert limits.connection_refusal(number) is None
    limits.open(3, "2001:db8::3")
    refusal = limits.connection_refusal(3)
    assert refusal is not None
    assert refusal.key == "addressConnectionsMax"
    assert refusal.remark.startswith(
        "[QUOTA]addressConnectionsMax: address 2001:db8::/64 has 3 connections, 2 are allowed"
    )
    limits.close(3)
    limits.close(0)
    limits.open(4, "2001:db8::4")
    assert limits.connection_refusal(4) is None


def test_by_default_one_address_leaves_room_for_others() -> None:
    config, limits = BrokerConfig(), Quotas()
    limits.set_limits(quota_limits(config))
    for number in range(config.address_connections_max):
        limits.open(number, "203.0.113.9")
        assert limits.connection_refusal(number) is None
    limits.open(-1, "203.0.113.9")
    assert limits.connection_refusal(-1) is not None
    limits.open(-2, "10.0.0.5")
    assert limits.connection_refusal(-2) is None


def test_an_account_is_limited_on_all_its_addresses() -> None:
    limits = quotas(accountConnectionsMax=1, accountRequestsPerSecond=10)
    first, second = limits.open(1, "10.0.0.1"), limits.open(2, "10.0.0.2")
    assert limits.identify(1, "producer") is None
    assert limits.identify(1, "producer") is None
    refusal = limits.identify(2, "producer")
    assert refusal is not None
    assert refusal.remark == "[QUOTA]accountConnectionsMax: account producer has 1 connections, 1 are allowed"
    limits.set_limits({"accountConnectionsMax": 0})
    assert limits.identify(2, "producer") is None
    assert first.add("requests", 10, 0.0) == 0
    assert second.add("requests", 5, 0.0) == pytest.approx(0.5)
    assert limits.identify(2, "consumer") is None  # another account on the same connection
    assert second.add("requests", 5, 0.0) == 0


def test_a_client_that_connects_again_has_used_what_it_used_before() -> None:
    limits = quotas(addressRequestsPerSecond=10)
    limits.open(1, "10.0.0.1").add("requests", 20, 0.0)
    limits.close(1)
    assert limits.open(2, "10.0.0.1").refusal("requests", 0, 0.5) is not None
    assert limits.open(3, "10.0.0.2").refusal("requests", 0, 0.5) is None


def test_addresses_without_connections_are_forgotten_beyond_a_number() -> None:
    limits = quotas(addressRequestsPerSecond=10)
    for number in range(IDLE_USAGES_MAX + 100):
        limits.open(number, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        limits.close(number)
    assert len(limits._usages) == IDLE_USAGES_MAX


def test_states_are_those_of_the_address_with_most_use() -> None:
    limits = quotas(addressRequestsPerSecond=10, addressConnectionsMax=0, addressBytesInPerSecond=0)
    limits.open(1, "10.0.0.1").add("requests", 4, 0.0)
    limits.open(2, "10.0.0.2").add("requests", 7, 0.0)
    states = {state.key: state for state in limits.states(0.0)}
    assert states["addressRequestsPerSecond"].used == pytest.approx(7)
    assert states["addressConnectionsMax"].used == 1
    assert states["addressBytesInPerSecond"].used is None  # not counted while it is unlimited


def test_exceeded_limits_are_described_in_one_line() -> None:
    limits = quotas(addressConnectionsMax=1)
    assert describe_exceeded(limits.exceeded) == ""
    for number in range(3):
        limits.open(number, "10.0.0.1")
        limits.connection_refusal(number)
    assert describe_exceeded(limits.exceeded) == "addressConnectionsMax 2"


# --- connections ---


class Transport:
    """A transport that remembers what was written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_reading = True
        self.is_over = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.is_over

    def abort(self) -> None:
        self.is_over = True

    def answers(self) -> list[Command]:
        return [commands.decode(frame) for frame in FrameReader().feed(b"".join(self.written))]


def frames(code: int, count: int, body: bytes = b"") -> bytes:
    return b"".join(b"".join(commands.encode(code, opaque=one, flag=0, body=body)) for one in range(count))


def in_loop(limits: ServerLimits, work: Callable[[Connection, Transport], Awaitable[None]]) -> None:
    async def run() -> None:
        handlers: dict[int, Handler] = dict.fromkeys(
            (PING, *RequestCode), lambda command, peer: Reply(body=command.body)
        )
        transport = Transport()
        connection = Connection(1, handlers, is_server=True, limits=limits)
        connection.connection_made(transport)  # type: ignore[arg-type]
        await work(connection, transport)
        connection.connection_lost(None)

    asyncio.run(asyncio.wait_for(run(), 30))


async def until(is_reached: Callable[[], bool]) -> None:
    while not is_reached():
        await asyncio.sleep(0.001)


class Recorder:
    """A RefusalRecorder that remembers codes and reasons."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, str]] = []

    def refused(self, command: Command, peer: Peer, reason: str) -> None:
        self.requests.append((command.code, reason))

    def refused_connection(self, peer: Peer, reason: str) -> None:
        raise AssertionError("no connection is refused here")


def test_requests_beyond_the_rate_are_refused_by_name_and_read_later() -> None:
    limits = ServerLimits(exempt=frozenset({HEARTBEAT}))
    limits.audit = recorder = Recorder()
    limits.quotas.set_limits({"addressRequestsPerSecond": 20})

    async def work(connection: Connection, transport: Transport) -> None:
        connection.data_received(frames(PING, 25))  # one batch: the limit is checked before it
        assert [answer.code for answer in transport.answers()] == [0] * 25
        assert transport.is_reading
        connection.data_received(frames(PING, 3) + frames(HEARTBEAT, 1))
        codes = [answer.code for answer in transport.answers()[25:]]
        assert codes == [2, 2, 2, 0]
        remark = str(transport.answers()[25].remark)
        assert remark.startswith(
            "[QUOTA]addressRequestsPerSecond: address 127.0.0.1 has 25 requests in a second, 20 are"
        )
        assert not transport.is_reading  # for 6 requests at 20 per second
        assert limits.quotas.exceeded["addressRequestsPerSecond"] == 3
        assert recorder.requests == [(PING, remark)] * 3
        await until(lambda: transport.is_reading)
        connection.data_received(frames(PING, 1))
        assert transport.answers()[-1].code == 0

    in_loop(limits, work)


def test_pulls_beyond_the_rate_are_served_late() -> None:
    limits = ServerLimits(delayed=frozenset({PULL}))
    limits.quotas.set_limits({"serverRequestsPerSecond": 20})

    async def work(connection: Connection, transport: Transport) -> None:
        connection.data_received(frames(PING, 30))
        connection.data_received(frames(PULL, 2))
        assert len(transport.answers()) == 30
        await until(lambda: len(transport.answers()) == 32)
        assert [answer.code for answer in transport.answers()[30:]] == [0] * 2
        assert limits.quotas.exceeded["serverRequestsPerSecond"] == 0

    in_loop(limits, work)


@pytest.mark.parametrize("code", RequestCode, ids=lambda code: code.name)
@pytest.mark.parametrize("server", ["broker", "name server"])
def test_each_request_beyond_the_rate_is_served_served_late_or_refused_by_name(server: str, code: RequestCode) -> None:
    is_broker = server == "broker"
    exempt, delayed = (EXEMPT_CODES, DELAYED_CODES) if is_broker else (nameserver.EXEMPT_CODES, frozenset())
    limits = ServerLimits(exempt=exempt, delayed=delayed)
    limits.quotas.set_limits({"serverRequestsPerSecond": 1})  # the excess lasts longer than any pause of the test

    async def work(connection: Connection, transport: Transport) -> None:
        connection.data_received(frames(PING, 21))
        connection.data_received(frames(code, 1))
        answers = transport.answers()[21:]
        if code in delayed:
            assert answers == []
        elif code in exempt:
            assert [answer.code for answer in answers] == [0]
        else:
            assert [answer.code for answer in answers] == [2]
            assert str(answers[0].remark).startswith(
                "[QUOTA]serverRequestsPerSecond: this server has 21 requests in a second"
            )

    in_loop(limits, work)


def test_a_queue_is_unlocked_and_membership_is_kept_beyond_the_rate() -> None:
    """Java's clients repeat neither an unlock nor an acknowledgement that is refused."""
    codes = {
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.ACK_MESSAGE,
        RequestCode.HEART_BEAT,
        RequestCode.UPDATE_CONSUMER_OFFSET,
    }
    assert codes <= EXEMPT_CODES


@pytest.mark.parametrize("key", ["serverBytesInPerSecond", "addressBytesInPerSecond", "addressBytesOutPerSecond"])
def test_bytes_beyond_the_rate_are_read_later(key: str) -> None:
    limits = ServerLimits()
    limits.quotas.set_limits({key: 100_000})

    async def work(connection: Connection, transport: Transport) -> None:
        connection.data_received(frames(PING, 1, bytes(90_000)))
        assert transport.is_reading
        connection.data_received(frames(PING, 1, bytes(20_000)))
        assert len(transport.answers()) == 2  # what has arrived is served
        assert not transport.is_reading
        assert limits.quotas.exceeded[key] == 1
        await until(lambda: transport.is_reading)

    in_loop(limits, work)


def test_without_limits_nothing_is_counted() -> None:
    limits = ServerLimits()

    async def work(connection: Connection, transport: Transport) -> None:
        connection.data_received(frames(PING, 100, bytes(1000)))
        await until(lambda: len(transport.answers()) == 100)
        assert not limits.quotas.server.rates

    in_loop(limits, work)


class Sender:
    """A FrameSender that remembers whether it was dropped."""

    def __init__(self) -> None:
        self.is_dropped = False

    def drop(self, reason: str) -> None:
        self.is_dropped = True


def test_frames_that_were_completed_without_a_limit_do_not_count_when_there_is_one() -> None:
    limits = quotas(addressUnfinishedMax=100)
    (first, sender), (second, other) = [(limits.open(number, "10.0.0.1"), Sender()) for number in (1, 2)]
    first.note_unfinished(sender, 80)
    limits.set_limits({"addressUnfinishedMax": 0})
    first.note_unfinished(sender, 0)
    limits.set_limits({"addressUnfinishedMax": 100})
    second.note_unfinished(other, 80)
    assert not sender.is_dropped
    assert limits.exceeded["addressUnfinishedMax"] == 0


def test_a_frame_does_not_count_for_the_former_account_of_its_connection() -> None:
    limits = quotas(accountUnfinishedMax=100)
    (first, sender), (second, other) = [(limits.open(number, "10.0.0.1"), Sender()) for number in (1, 2)]
    limits.identify(1, "producer")
    limits.identify(2, "producer")
    first.note_unfinished(sender, 80)
    limits.identify(1, "consumer")
    first.note_unfinished(sender, 0)
    second.note_unfinished(other, 80)
    assert not sender.is_dropped
    assert limits.exceeded["accountUnfinishedMax"] == 0


def test_unfinished_frames_of_an_address_are_bounded() -> None:
    limits = ServerLimits()
    limits.quotas.set_limits({"addressUnfinishedMax": 50_000})

    async def work(connection: Connection, transport: Transport) -> None:
        connection.data_received(frames(PING, 1, bytes(100_000))[:40_000])
        assert not transport.is_over
        connection.data_received(bytes(20_000))
        assert transport.is_over
        assert limits.quotas.exceeded["addressUnfinishedMax"] == 1

    in_loop(limits, work)

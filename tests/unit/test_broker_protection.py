"""Rejection of sends while the disk is too slow, and the limits of a server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgspec

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.lifecycle.write_protection import REJECT_MAX_S, WriteProtection
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.net.limits.flow_limits import FEW_REQUESTS, ServerLimits
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command

PEER = Peer(1, "127.0.0.1", 1, b"")


class Scene:
    """A broker's disk: how long the next send takes, and the bytes that are not flushed yet."""

    def __init__(self) -> None:
        self.now = 100.0
        self.takes_s = 0.0
        self.unflushed = 0
        self.settings = DynamicConfig(BrokerConfig(broker_name="b", flush_behind_max=1_000), 0)
        self.protection = WriteProtection(
            settings=self.settings,
            store=self,  # type: ignore[arg-type]
            clock=SimpleNamespace(monotonic=lambda: self.now),  # type: ignore[arg-type]
        )
        codes = (RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE)
        self.handlers = self.protection.with_checks(dict.fromkeys(codes, self._serve))

    flushed = 0

    @property
    def commit_log_max(self) -> int:
        return self.unflushed

    def _serve(self, command: Command, peer: Peer) -> HandlerResult:
        self.now += self.takes_s
        return Reply(body=b"served")

    def ask(self, code: int = RequestCode.SEND_MESSAGE_V2) -> Reply:
        reply = self.handlers[code](Command(code), PEER)
        assert isinstance(reply, Reply)
        return reply


def test_a_slow_write_rejects_sends_for_as_long_as_it_took() -> None:
    scene = Scene()
    scene.takes_s = 1.5
    assert scene.ask().body == b"served"
    scene.takes_s = 0.0
    refused = scene.ask()
    assert refused.code == 2
    assert str(refused.remark).startswith("[REJECTREQUEST]")
    assert "1500 ms" in str(refused.remark)
    assert scene.ask(RequestCode.PULL_MESSAGE).body == b"served"
    scene.now += 1.5
    assert scene.ask().body == b"served"
    assert scene.ask().body == b"served"


def test_a_write_within_the_limit_rejects_nothing_and_a_stalled_disk_is_retried() -> None:
    scene = Scene()
    scene.takes_s = 0.9
    assert [scene.ask().code for _ in range(3)] == [0, 0, 0]
    scene.settings.apply(msgspec.structs.replace(scene.settings.current, os_page_cache_busy_time_out_mills=500), 0)
    assert [scene.ask().code for _ in range(2)] == [0, 2]
    scene.now += 0.9
    scene.takes_s = 600.0
    assert scene.ask().code == 0
    scene.now += REJECT_MAX_S
    assert scene.ask().code == 0


def test_too_many_unflushed_bytes_reject_sends_until_they_are_flushed() -> None:
    scene = Scene()
    scene.unflushed = 1_001
    asyncio.run(scene.protection.update_backlog())
    assert "1001 bytes" in str(scene.ask().remark)
    scene.unflushed = 10
    asyncio.run(scene.protection.update_backlog())
    assert scene.ask().code == 0


def test_connections_with_many_requests_in_flight_leave_room_for_others() -> None:
    """Eight connections whose requests waited for large lists had pings on all others refused."""
    limits = ServerLimits(requests_max=16)
    limits.in_flight = 13
    assert limits.overload_reason(FEW_REQUESTS) is None
    limits.in_flight = 14
    assert "at most 14 are allowed" in str(limits.overload_reason(FEW_REQUESTS))
    assert limits.overload_reason(FEW_REQUESTS - 1) is None
    limits.in_flight = 16
    assert "at most 16 are allowed" in str(limits.overload_reason(0))


def test_exceeded_limits_are_reported_with_their_reason() -> None:
    limits = ServerLimits(requests_max=3, connection_requests_max=2, queue_time_limits_s={10: 0.2})
    limits.in_flight = 2
    assert limits.overload_reason(1) is None
    assert str(limits.overload_reason(2)).startswith("[OVERLOAD]")
    limits.in_flight = 3
    assert "3 are allowed" in str(limits.overload_reason(0))
    assert limits.exceeds_queue_time(10, 0.2) is None
    assert str(limits.exceeds_queue_time(10, 0.25)).startswith("[TIMEOUT_CLEAN_QUEUE]")
    assert limits.exceeds_queue_time(11, 9.0) is None

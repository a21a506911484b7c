"""Rejection of sends while the disk does not keep up: response 2 `[REJECTREQUEST]`. [isOSPageCacheBusy, rejectRequest]

                 a send took longer than osPageCacheBusyTimeOutMills
    open  ──────────────────────────────────────────────────────────▶  rejecting, for the time that this send took
      ▲                                                                   │
      └── the next send is let through, and was stored in time ◀──────────┘

A write to the log blocks the whole loop, so a slow one is noticed when it is over: requests that arrived in the meantime would
probably wait again, and their clients should try another broker. In addition, at most flushBehindMax bytes of the log may be
unflushed: this bounds the loss at a power failure, and the time needed to close the store.
"""

from __future__ import annotations

from collections.abc import Mapping

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.clock import Clock
from ariane.net.connection import Handler, HandlerResult, Peer, Reply
from ariane.net.limits.flow_limits import ServerLimits
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.settings.limits import quota_limits
from ariane.store.message_store import MessageStore

# Requests that append messages of clients.
SEND_CODES = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    }
)

# Answered without waiting, so they are served even if the maximum number of requests is in flight: clients keep their
# membership, offsets and acknowledgements, and an operator can still connect. Java's clients do not repeat a refused
# acknowledgement: the message would be delivered again. They do not repeat a refused unlock either: the queue would be locked for
# another minute.
EXEMPT_CODES = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
    }
)

# Served late, and not refused, beyond a limit of requests per second: consumers of Java repeat a refused pull after 3 s, those
# of 5.x on some refusals after 20 ms.
DELAYED_CODES = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE})

REJECT_MAX_S = 10.0  # after this time even a disk that blocked for minutes is tried again


class WriteProtection:
    """Measures how long sends take, and rejects them while the disk is too slow."""

    def __init__(self, *, settings: DynamicConfig, store: MessageStore, clock: Clock) -> None:
        self._settings = settings
        self._store = store  # bytes of the log that are unflushed
        self._clock = clock  # monotonic, to time sends
        self._reject_until = 0.0  # by the monotonic clock
        self._took_s = 0.0  # duration of the last slow send
        self._is_backlog_full = False  # too many bytes of the log are unflushed

    def with_checks(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the handlers, with a check before each send."""
        return {code: self._with_check(serve) if code in SEND_CODES else serve for code, serve in handlers.items()}

    async def update_backlog(self) -> None:
        """Measure the unflushed part of the log. Call this a few times per second."""
        self._is_backlog_full = self._unflushed_bytes() > self._settings.current.flush_behind_max

    @property
    def may_refuse(self) -> bool:
        """Return False if `refusal` returns None at any time: spares most sends the clock."""
        return self._is_backlog_full or self._reject_until > 0

    def refusal(self, now: float) -> str | None:
        """Return why sends are rejected at a time of the monotonic clock; None if they are accepted."""
        if now < self._reject_until:
            limit_ms = self._settings.current.os_page_cache_busy_time_out_mills
            return (
                f"[REJECTREQUEST]system busy, storing a message took {self._took_s * 1000:.0f} ms just now "
                f"(osPageCacheBusyTimeOutMills is {limit_ms}); try again in {(self._reject_until - now) * 1000:.0f} ms"
            )
        if self._is_backlog_full:
            limit = self._settings.current.flush_behind_max
            return (
                f"[REJECTREQUEST]system busy, {self._unflushed_bytes()} bytes of the log are not flushed yet "
                f"(flushBehindMax is {limit}); try again later"
            )
        return None

    def on_slow_send(self, took_s: float, ended: float) -> None:
        """Reject further sends if this one took longer than allowed."""
        self._took_s = took_s
        if self._took_s * 1000 > self._settings.current.os_page_cache_busy_time_out_mills:
            self._reject_until = ended + min(self._took_s, REJECT_MAX_S)

    def _unflushed_bytes(self) -> int:
        return self._store.commit_log_max - self._store.flushed

    def _with_check(self, serve: Handler) -> Handler:
        monotonic = self._clock.monotonic

        def checked(command: Command, peer: Peer) -> HandlerResult:
            started = monotonic()
            if self._is_backlog_full or started < self._reject_until:
                return Reply(ResponseCode.SYSTEM_BUSY, remark=self.refusal(started))
            handled = serve(command, peer)
            ended_at = monotonic()
            if ended_at - started > 0.001:  # far below any limit: keeps the settings out of the hot path
                self.on_slow_send(ended_at - started, ended_at)
            return handled

        return checked


def set_limits(limits: ServerLimits, config: BrokerConfig) -> None:
    """Set the limits of a server from the settings."""
    limits.quotas.set_limits(quota_limits(config))
    limits.requests_max = config.server_requests_max
    limits.connection_requests_max = config.connection_requests_max
    limits.header_max = config.max_request_header_size
    limits.connection_unread_max = config.connection_unread_max
    limits.unread_timeout_s = config.unread_timeout_seconds
    waits_ms = {
        **dict.fromkeys(SEND_CODES, config.wait_time_mills_in_send_queue),
        RequestCode.PULL_MESSAGE: config.wait_time_mills_in_pull_queue,
        RequestCode.LITE_PULL_MESSAGE: config.wait_time_mills_in_pull_queue,
        RequestCode.POP_MESSAGE: config.wait_time_mills_in_pull_queue,
        RequestCode.HEART_BEAT: config.wait_time_mills_in_heartbeat_queue,
        RequestCode.END_TRANSACTION: config.wait_time_mills_in_transaction_queue,
    }
    waits_s = {int(code): ms / 1000 for code, ms in waits_ms.items()}
    limits.queue_time_limits_s = waits_s if config.broker_fast_failure_enable else {}

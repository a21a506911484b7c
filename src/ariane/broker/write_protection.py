"""Sends are refused while the disk does not keep up: answer 2 `[REJECTREQUEST]`. [isOSPageCacheBusy, rejectRequest]

                 a send took longer than osPageCacheBusyTimeOutMills
    open  ──────────────────────────────────────────────────────────▶  refusing, for as long as that send took
      ▲                                                                   │
      └── the next send is let through, and was stored in time ◀──────────┘

A write of the log holds up the whole loop, so a slow one is known when it is over: whoever sent meanwhile would wait in
vain for the same, and is told to try another broker. Besides, no more than flushBehindMax bytes of the log may wait for the
disk: what a loss of power takes has a bound, and so has the time that closing the store takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ariane.broker.config import BrokerConfig
from ariane.broker.dynamic_config import DynamicConfig
from ariane.net.connection import Handler, HandlerResult, Peer, Reply
from ariane.net.flow_limits import ServerLimits
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command

# What puts messages into the log for clients.
SEND_CODES = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    }
)

# Answered at once, and so also while as many requests are under way as are allowed: clients keep their membership and
# offsets, and an operator gets in.
EXEMPT_CODES = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
    }
)

REJECT_MAX_S = 10.0  # a disk that hung for minutes is tried again after so long


class WriteProtection:
    """Watches how long sends take. `unflushed` are the bytes of the log that wait for the disk; `monotonic` is in seconds."""

    def __init__(self, settings: DynamicConfig, unflushed: Callable[[], int], monotonic: Callable[[], float]) -> None:
        self._settings = settings
        self._unflushed = unflushed
        self._monotonic = monotonic
        self._reject_until = 0.0
        self._took_s = 0.0
        self._is_backlog_full = False

    def with_checks(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers, those of sends under this protection."""
        return {code: self._with_check(serve) if code in SEND_CODES else serve for code, serve in handlers.items()}

    async def update_backlog(self) -> None:
        """See how much waits for the disk; to be called a few times a second."""
        self._is_backlog_full = self._unflushed() > self._settings.current.flush_behind_max

    def refusal(self, now: float) -> str | None:
        """Why no message is taken at this time; None: it is."""
        if now < self._reject_until:
            limit_ms = self._settings.current.os_page_cache_busy_time_out_mills
            return (
                f"[REJECTREQUEST]system busy, storing a message took {self._took_s * 1000:.0f} ms just now "
                f"(osPageCacheBusyTimeOutMills is {limit_ms}); try again in {(self._reject_until - now) * 1000:.0f} ms"
            )
        if self._is_backlog_full:
            most = self._settings.current.flush_behind_max
            return (
                f"[REJECTREQUEST]system busy, {self._unflushed()} bytes of the log wait for the disk "
                f"(flushBehindMax is {most}); try again later"
            )
        return None

    def on_stored_within(self, began: float, ended: float) -> None:
        """A send was stored within this time."""
        self._took_s = ended - began
        if self._took_s * 1000 > self._settings.current.os_page_cache_busy_time_out_mills:
            self._reject_until = ended + min(self._took_s, REJECT_MAX_S)

    def _with_check(self, serve: Handler) -> Handler:
        monotonic = self._monotonic

        def checked(command: Command, peer: Peer) -> HandlerResult:
            began = monotonic()
            if self._is_backlog_full or began < self._reject_until:
                return Reply(ResponseCode.SYSTEM_BUSY, remark=self.refusal(began))
            handled = serve(command, peer)
            ended = monotonic()
            if ended - began > 0.001:  # far below any limit: spares the hot path a look at the settings
                self.on_stored_within(began, ended)
            return handled

        return checked


def set_limits(limits: ServerLimits, config: BrokerConfig) -> None:
    """Bound what a server takes on, as the settings say."""
    limits.connections_max = config.server_connections_max
    limits.requests_max = config.server_requests_max
    limits.connection_requests_max = config.connection_requests_max
    limits.header_max = config.max_request_header_size
    limits.connection_unread_max = config.connection_unread_max
    limits.unread.total_max = config.server_unread_max
    limits.unfinished.total_max = config.server_unfinished_max
    limits.unread_timeout_s = config.unread_timeout_seconds
    waits_ms = {
        **dict.fromkeys(SEND_CODES, config.wait_time_mills_in_send_queue),
        RequestCode.PULL_MESSAGE: config.wait_time_mills_in_pull_queue,
        RequestCode.LITE_PULL_MESSAGE: config.wait_time_mills_in_pull_queue,
        RequestCode.HEART_BEAT: config.wait_time_mills_in_heartbeat_queue,
        RequestCode.END_TRANSACTION: config.wait_time_mills_in_transaction_queue,
    }
    waits_s = {int(code): ms / 1000 for code, ms in waits_ms.items()}
    limits.queue_time_limits_s = waits_s if config.broker_fast_failure_enable else {}

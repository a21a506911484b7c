"""Limits of topics, groups and queues: of the broker, and of the client whose request creates them.

    request ─→ with_clients: notes its client ─→ handler ─→ registry ─→ check_server, charge_client ─→ created, or refused [QUOTA]

Topics of retries and dead letters are not charged to a client: consumers go on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import msgspec

from ariane.audit.audited_requests import CHANGES
from ariane.broker.config.broker_config import BrokerConfig
from ariane.errors import ReplyError
from ariane.net.connection import Handler, HandlerResult, Peer
from ariane.net.limits.flow_limits import RefusalRecorder
from ariane.net.limits.quotas import QUOTA, LimitState, Quotas, ResourceName, limit_key
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command

# Requests that may create topics or groups.
CREATING_CODES = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.HEART_BEAT,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    }
)

# Number of the connection whose request is served; None: the broker itself creates something.
_client: ContextVar[int | None] = ContextVar("ariane_client", default=None)


class CreationLimits:
    """Decides about new topics, groups and queues.

    Args:
        config: The limits of the broker, until `set`.
        quotas: The limits of addresses and accounts.
        now_ms: Monotonic time.
    """

    def __init__(self, config: BrokerConfig, quotas: Quotas, now_ms: Callable[[], float]) -> None:
        self._quotas = quotas
        self._now_ms = now_ms
        self.audit: RefusalRecorder | None = None  # records what is refused; None: nothing does
        self.set(config)

    def set(self, config: BrokerConfig) -> None:
        """Put the limits of a configuration in force."""
        self.topics_max = config.server_topics_max
        self.groups_max = config.server_groups_max
        self.queues_max = config.server_queues_max

    def refuse(self, resource: ResourceName, remark: str) -> ReplyError:
        """Count that a limit of the broker was exceeded, and return the error."""
        key = limit_key("server", resource)
        self._quotas.exceeded[key] += 1
        return ReplyError(ResponseCode.SYSTEM_ERROR, f"{QUOTA}{key}: {remark}")

    def charge_client(self, growth: Mapping[ResourceName, int]) -> None:
        """Charge what a request creates to its client.

        Raises:
            ReplyError: its address or account has created too much.
        """
        number = _client.get()
        if number is not None:
            refusal = self._quotas.admit(number, growth, self._now_ms() / 1000)
            if refusal is not None:
                raise ReplyError(ResponseCode.SYSTEM_ERROR, refusal.remark)

    def with_clients(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return handlers whose creations are charged to the clients."""
        return {code: self._with_client(serve) if code in CREATING_CODES else serve for code, serve in handlers.items()}

    def _with_client(self, serve: Handler) -> Handler:
        def served(command: Command, peer: Peer) -> HandlerResult:
            token = _client.set(peer.id)
            try:
                handled = serve(command, peer)
            except ReplyError as error:
                self._record(command, peer, error)
                raise
            finally:
                _client.reset(token)
            if not inspect.iscoroutine(handled):
                return handled
            # Enough for the audit log: the body of a request is not retained while it is in flight.
            return self._in_task(handled, msgspec.structs.replace(command, body=b""), peer)

        return served

    async def _in_task(self, work: Coroutine[Any, Any, Any], command: Command, peer: Peer) -> Any:
        """Run a handler that is a coroutine: in a task, which has a context of its own."""
        _client.set(peer.id)
        try:
            return await work
        except ReplyError as error:
            self._record(command, peer, error)
            raise

    def _record(self, command: Command, peer: Peer, error: ReplyError) -> None:
        # The audit log has each change with its result.
        if self.audit is not None and (error.remark or "").startswith(QUOTA) and command.code not in CHANGES:
            self.audit.refused(command, peer, error.remark or "")

    def states(self, used: Mapping[ResourceName, int]) -> Iterator[LimitState]:
        """Return the state of the limits of the broker, for metrics."""
        limits: Mapping[ResourceName, int] = {
            "topics": self.topics_max, "groups": self.groups_max, "queues": self.queues_max,
        }  # fmt: skip
        for resource, limit in limits.items():
            key = limit_key("server", resource)
            yield LimitState(key, limit, used[resource], self._quotas.exceeded[key])

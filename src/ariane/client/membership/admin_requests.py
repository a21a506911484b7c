"""Requests that brokers and tools send to a consumer. [ClientRemotingProcessor, ConsumerRunningInfo]

220 reset offset       revoke the queues, commit the given offsets, assign the queues again
221 status             return the consumed offsets of a topic
307 running info       return settings, subscriptions, queues and rates; on request the stacks of all tasks
309 consume directly   call the listener once with the message, without acknowledging it or sending it back
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable

from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.consuming.payload_messages import with_payload
from ariane.client.consuming.process_queue import LOCK_TRUSTED_S, ProcessQueue
from ariane.client.delivery.listener_invoker import ListenerInvoker
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.hooks import ConsumeReturn
from ariane.client.instance.settings import ConsumerSettings
from ariane.client.membership.fetcher import FetchContext
from ariane.client.membership.rebalancer import Rebalancer
from ariane.errors import ReplyError
from ariane.model.message import MessageQueue
from ariane.net.connection import HandlerResult, Reply
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.protocol.records.received_messages import is_unreadable, to_received_message
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.callbacks import (
    ConsumeDirectly,
    ConsumerStatus,
    DirectResult,
    ProcessQueueInfo,
    ResetOffset,
    RunningInfo,
    RunningInfoRequest,
    reset_table,
    status_body,
)
from ariane.protocol.requests.clients import ConsumerData, WireQueue

log = logging.getLogger("ariane.client")

MIB = 1024 * 1024
PROTOCOL_VERSION = "V4_9_4"
TASKS_MAX = 200  # tasks in a response to 307 with stacks
REMARK_MAX = 4_000  # characters of a listener's error in a response to 309

# How tools name the outcome of a listener call.
RESULTS = {
    ConsumeReturn.SUCCESS: "CR_SUCCESS",
    ConsumeReturn.TIME_OUT: "CR_LATER",
    ConsumeReturn.EXCEPTION: "CR_THROW_EXCEPTION",
    ConsumeReturn.RETURN_NULL: "CR_RETURN_NULL",
    ConsumeReturn.FAILED: "CR_LATER",
}


class AdminRequestHandler:
    """Handles the admin requests of one group member."""

    def __init__(self, context: FetchContext, rebalancer: Rebalancer) -> None:
        self._context = context
        self._rebalancer = rebalancer
        self._started_ms = context.instance.clock.now_ms()

    def handle(self, command: Command) -> HandlerResult | None:
        """Handle a request; None if its code is not supported.

        Raises:
            ReplyError: the request cannot be fulfilled; the remark says why.
        """
        match command.code:
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                return self._reset_offsets(decode_header(command, ResetOffset), command.body)
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                return self._status(decode_header(command, ConsumerStatus))
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                stacks = task_stacks() if decode_header(command, RunningInfoRequest).jstack_enable else None
                return Reply(body=fastjson.write(self._running_info(stacks)))
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                return self._consume_directly(decode_header(command, ConsumeDirectly), command.body)
            case _:
                return None

    def _reset_offsets(self, request: ResetOffset, body: bytes) -> Reply:
        """Restart the assigned queues at the given offsets. Other members receive the same request for theirs."""
        unwrap = self._context.instance.namespace.unwrap_queue
        table = {unwrap(queue): offset for queue, offset in reset_table(body).items()}
        offsets = {queue: offset for queue, offset in table.items() if queue.topic == request.topic}
        count = self._rebalancer.reset(offsets)
        group = self._context.options.group
        log.warning(
            "A tool resets offsets of %s for group %s; %d of %d queues are assigned to this member",
            request.topic,
            group,
            count,
            len(offsets),
        )
        return Reply()

    def _status(self, request: ConsumerStatus) -> Reply:
        queues = [queue for queue in self._rebalancer.queues if queue.topic == request.topic]
        offsets = {queue: self._context.offsets.consumed(queue) for queue in queues}
        wrap = self._context.instance.namespace.wrap_queue
        return Reply(body=status_body({wrap(queue): offset for queue, offset in offsets.items() if offset is not None}))

    def _consume_directly(self, request: ConsumeDirectly, body: bytes) -> HandlerResult:
        invoker = self._context.delivery.invoker
        if invoker is None:
            group = self._context.options.group
            raise ReplyError(ResponseCode.SYSTEM_ERROR, f"group {group} polls its messages and has no listener to call")
        return self._call_listener(invoker, request, body)

    async def _call_listener(self, invoker: ListenerInvoker, request: ConsumeDirectly, body: bytes) -> Reply:
        """Call the listener once with the record in `body`, whether or not it was consumed before."""
        stored = record.decode(body)
        unwrap = self._context.instance.namespace.unwrap
        queue = MessageQueue(unwrap(stored.topic), request.broker_name or "", stored.queue_id)
        received = to_received_message(stored, stored.property_map(), queue, unwrap)
        message = with_payload(received, self._context.options.payload)
        if is_unreadable(message):
            raise ReplyError(
                ResponseCode.SYSTEM_ERROR, f"the body of {message.message_id} cannot be read: {message.body_error}"
            )
        clock = self._context.instance.clock
        started = clock.monotonic()
        outcome = await invoker.invoke_once([message])
        result = DirectResult(
            consume_result=RESULTS[outcome.status],
            order=self._context.options.is_orderly,
            remark=outcome.reason[:REMARK_MAX] or None,
            spent_time_mills=round((clock.monotonic() - started) * 1000),
        )
        return Reply(body=fastjson.write(result))

    def _running_info(self, stacks: str | None) -> RunningInfo:
        """Return the state of this member with the names on the wire, which tools compare with those of brokers."""
        context = self._context
        clock, namespace = context.instance.clock, context.instance.namespace
        now, now_ms = clock.monotonic(), clock.now_ms()

        def wall_ms(monotonic_s: float) -> int:
            return now_ms - round((now - monotonic_s) * 1000)

        return RunningInfo(
            jstack=stacks,
            mq_table={
                WireQueue.of(namespace.wrap_queue(process_queue.queue)): _queue_info(
                    process_queue, context.offsets, now, wall_ms
                )
                for process_queue in self._rebalancer.process_queues
            },
            properties=self._properties(),
            status_table={namespace.wrap(topic): context.rates.status(topic) for topic in context.subscriptions},
            subscription_set=namespace.to_wire(tuple(context.subscriptions.values())),
        )

    def _properties(self) -> dict[str, str]:
        context, options = self._context, self._context.options
        return {
            **settings_properties(options.settings),
            **identity_properties(
                context.instance,
                context.instance.namespace.to_wire(options.describe(context.subscriptions.values())),
                self._started_ms,
                is_orderly=options.is_orderly,
                # A consumer that polls calls no listener, so its concurrency is the application's: one caller.
                threads=1 if options.is_polled else options.settings.concurrency,
            ),
        }


def _queue_info(
    process_queue: ProcessQueue, offsets: OffsetStore, now: float, wall_ms: Callable[[float], int]
) -> ProcessQueueInfo:
    window = process_queue.tracker
    bounds = window.bounds
    consumed = offsets.consumed(process_queue.queue)
    return ProcessQueueInfo(
        cached_msg_count=len(window),
        cached_msg_min_offset=bounds[0],
        cached_msg_max_offset=bounds[1],
        cached_msg_size_in_mi_b=window.bytes // MIB,
        commit_offset=window.commit_offset if consumed is None else consumed,
        droped=process_queue.is_dropped,
        last_consume_timestamp=wall_ms(process_queue.consumed_at),
        last_lock_timestamp=wall_ms(process_queue.locked_until - LOCK_TRUSTED_S) if process_queue.locked_until else 0,
        last_pull_timestamp=wall_ms(process_queue.pulled_at),
        locked=process_queue.is_locked(now),
    )


def settings_properties(settings: ConsumerSettings) -> dict[str, str]:
    """Return the fields of a settings object as texts, with camelCase names."""
    texts = {}
    for field in dataclasses.fields(settings):
        first, *rest = field.name.split("_")
        value = getattr(settings, field.name)
        texts[first + "".join(map(str.capitalize, rest))] = (
            str(value).lower() if isinstance(value, bool) else str(value)
        )
    return texts


def identity_properties(
    instance: ClientInstance, described: ConsumerData, started_ms: int, *, is_orderly: bool, threads: int = 1
) -> dict[str, str]:
    """Return the properties that tools expect of every consumer, under Java's names."""
    return {
        "consumerGroup": described.group_name,
        "messageModel": str(described.message_model),
        "consumeFromWhere": str(described.consume_from_where),
        "clientId": instance.client_id,
        "PROP_CLIENT_VERSION": PROTOCOL_VERSION,
        "PROP_CONSUMEORDERLY": str(is_orderly).lower(),
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        "PROP_CONSUME_TYPE": str(described.consume_type),
        "PROP_NAMESERVER_ADDR": "".join(f"{addr};" for addr in instance.name_servers),
        "PROP_THREADPOOL_CORE_SIZE": str(threads),
    }


def task_stacks() -> str:
    """Return the stack of each task of the running loop as text. [jstack]"""
    lines = []
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    for task in tasks[:TASKS_MAX]:
        lines.append(f'"{task.get_name()}"')
        lines += [f"    at {frame.f_code.co_qualname}:{frame.f_lineno}" for frame in task.get_stack()]
    if len(tasks) > TASKS_MAX:
        lines.append(f"… {len(tasks) - TASKS_MAX} more tasks")
    return "\n".join(lines)

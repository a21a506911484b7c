"""What brokers and tools ask a consumer, and what it answers. [ClientRemotingProcessor, ConsumerRunningInfo]

220 reset offset     its queues are given up, the offsets that are named are stored, and they are begun with again
221 status           its offsets of a topic
307 running info     settings, subscriptions, queues, rates; on request what its tasks are doing
309 consume one      the listener is called once with the message; nothing is acknowledged or sent back by that
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from ariane.client.client_instance import ClientInstance
from ariane.client.fetcher import is_unreadable, to_received_message
from ariane.client.hooks import ConsumeReturn
from ariane.client.listener_invoker import ListenerInvoker
from ariane.client.offset_store import OffsetStore
from ariane.client.process_queue import LOCK_TRUSTED_S, ProcessQueue
from ariane.client.rates import ConsumeRates
from ariane.client.rebalancer import Rebalancer
from ariane.clock import Clock
from ariane.errors import ReplyError
from ariane.model.message import MessageQueue
from ariane.net.connection import Handled, Reply
from ariane.protocol import fastjson, record
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import typed
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
from ariane.protocol.requests.clients import ConsumerData, SubscriptionData, WireQueue

log = logging.getLogger("ariane.client")

MIB = 1024 * 1024
PROTOCOL_VERSION = "V4_9_4"
TASKS_MAX = 200  # of the tasks in an answer to 307 with stacks
REMARK_MAX = 4_000  # characters of a listener's error in an answer to 309

# How a call of the listener ended, as tools show it.
RESULTS = {
    ConsumeReturn.SUCCESS: "CR_SUCCESS",
    ConsumeReturn.TIME_OUT: "CR_LATER",
    ConsumeReturn.EXCEPTION: "CR_THROW_EXCEPTION",
    ConsumeReturn.RETURN_NULL: "CR_RETURN_NULL",
    ConsumeReturn.FAILED: "CR_LATER",
}


class AdminRequestHandler(NamedTuple):
    """What the answers are made of. `settings` are the consumer's as texts, by the names that Java gives them; without a
    listener (`listening` None) nothing can be consumed for a tool."""

    group: str
    settings: Callable[[], Mapping[str, str]]
    subscriptions: Callable[[], Iterable[SubscriptionData]]
    is_orderly: bool
    allocation: Rebalancer
    offsets: OffsetStore
    listening: ListenerInvoker | None
    rates: ConsumeRates
    clock: Clock


Answer = Callable[[Command], Handled]


def answers(parts: AdminRequestHandler) -> dict[int, Answer]:
    def reset(command: Command) -> Handled:
        return reset_offsets(parts, typed(command, ResetOffset), command.body)

    def status(command: Command) -> Handled:
        request = typed(command, ConsumerStatus)
        offsets = {one: parts.offsets.consumed(one) for one in parts.allocation.queues if one.topic == request.topic}
        return Reply(body=status_body({queue: offset for queue, offset in offsets.items() if offset is not None}))

    def info(command: Command) -> Handled:
        stacks = typed(command, RunningInfoRequest).jstack_enable
        return Reply(body=fastjson.write(running_info(parts, task_stacks() if stacks else None)))

    def consume(command: Command) -> Handled:
        if parts.listening is None:
            raise ReplyError(
                ResponseCode.SYSTEM_ERROR, f"the members of {parts.group} poll: they have no listener to call"
            )
        return consume_directly(parts, parts.listening, typed(command, ConsumeDirectly), command.body)

    return {
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET: reset,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: status,
        RequestCode.GET_CONSUMER_RUNNING_INFO: info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: consume,
    }


def reset_offsets(parts: AdminRequestHandler, request: ResetOffset, body: bytes) -> Reply:
    """Begin anew where a tool says. Queues of other members are theirs to reset: they are told the same."""
    table = {queue: offset for queue, offset in reset_table(body).items() if queue.topic == request.topic}
    mine = parts.allocation.reset(table)
    log.warning("group %s: a tool resets %s; %d of %d queues are here", parts.group, request.topic, mine, len(table))
    return Reply()


async def consume_directly(
    parts: AdminRequestHandler, listening: ListenerInvoker, request: ConsumeDirectly, body: bytes
) -> Reply:
    """Call the listener once with the record in `body`, whatever was consumed before."""
    stored = record.decode(body)
    queue = MessageQueue(stored.topic, request.broker_name or "", stored.queue_id)
    message = to_received_message(stored, stored.property_map(), queue)
    if is_unreadable(message):
        raise ReplyError(
            ResponseCode.SYSTEM_ERROR, f"the body of {message.message_id} cannot be read: {message.body_error}"
        )
    started = parts.clock.monotonic()
    outcome = await listening.invoke_once(queue, [message])
    result = DirectResult(
        consume_result=RESULTS[outcome.status],
        order=parts.is_orderly,
        remark=outcome.reason[:REMARK_MAX] or None,
        spent_time_mills=round((parts.clock.monotonic() - started) * 1000),
    )
    return Reply(body=fastjson.write(result))


def running_info(parts: AdminRequestHandler, stacks: str | None) -> RunningInfo:
    """This consumer as tools see it."""
    now, now_ms = parts.clock.monotonic(), parts.clock.now_ms()

    def wall_ms(then: float) -> int:
        return now_ms - round((now - then) * 1000)

    topics = [one.topic for one in parts.subscriptions()]
    return RunningInfo(
        jstack=stacks,
        mq_table={
            WireQueue.of(one.queue): _queue_info(one, parts.offsets, now, wall_ms)
            for one in parts.allocation.process_queues
        },
        properties=dict(parts.settings()),
        status_table={topic: parts.rates.status(topic) for topic in topics},
        subscription_set=tuple(parts.subscriptions()),
    )


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


def settings_properties(settings: msgspec.Struct) -> dict[str, str]:
    """Members of a settings object as texts, in camelCase."""
    texts = {}
    for name in settings.__struct_fields__:
        first, *rest = name.split("_")
        value = getattr(settings, name)
        texts[first + "".join(map(str.capitalize, rest))] = (
            str(value).lower() if isinstance(value, bool) else str(value)
        )
    return texts


def identity_properties(
    instance: ClientInstance, described: ConsumerData, started_ms: int, *, is_orderly: bool, threads: int = 1
) -> dict[str, str]:
    """What tools need to know of a consumer, by the names that they know."""
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
    """Where each task of the running loop waits, for people. [jstack]"""
    lines = []
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    for task in tasks[:TASKS_MAX]:
        lines.append(f'"{task.get_name()}"')
        lines += [f"    at {frame.f_code.co_qualname}:{frame.f_lineno}" for frame in task.get_stack()]
    if len(tasks) > TASKS_MAX:
        lines.append(f"… {len(tasks) - TASKS_MAX} more tasks")
    return "\n".join(lines)

"""State of a consumer as Java's tools print it. Reference: client-behaviour 19.2. [ConsumerRunningInfo.formatString]"""

from __future__ import annotations

from datetime import datetime

from ariane.cli.mqadmin.command import lines
from ariane.cli.mqadmin.value_text import boolean, message_queue
from ariane.cluster.groups.consumer_status import NOT_CONSUMING, NOT_LOCKED, BlockedQueue, ConsumerState
from ariane.protocol.requests.callbacks import ProcessQueueInfo


def running_info(state: ConsumerState) -> str:
    """Return the state of a client in sections."""
    columns = f"{'#Topic':<64}  {'#Broker Name':<32}  {'#QID':<4}"
    subscriptions = [
        f"{number:03d} Topic: {data.topic:<40} ClassFilter: {boolean(data.class_filter_mode):<8}"
        f" SubExpression: {data.sub_string}"
        for number, data in enumerate(state.subscriptions, 1)
    ]
    offsets = [
        f"{queue.topic:<32}  {queue.broker:<32}  {queue.queue_id:<4}  {info.commit_offset:<20}"
        for queue, info in state.queues.items()
    ]
    caches = [
        f"{queue.topic:<64}  {queue.broker:<32}  {queue.queue_id:<4}  {process_queue(info)}"
        for queue, info in state.queues.items()
    ]
    rate_columns = (
        f"{'#Topic':<64}  {'#Pull RT':>14} {'#Pull TPS':>14} {'#Consume RT':>14} {'#ConsumeOK TPS':>14}"
        f" {'#ConsumeFailed TPS':>18} {'#ConsumeFailedMsgsInHour':>25}"
    )
    rates = [
        f"{topic:<32}  {status.pull_rt:14.2f} {status.pull_tps:14.2f} {status.consume_rt:14.2f}"
        f" {status.consume_ok_tps:14.2f} {status.consume_failed_tps:18.2f} {status.consume_failed_msgs:25d}"
        for topic, status in state.statistics.items()
    ]
    sections = {
        "Consumer Properties": [f"{name:<40}: {value}" for name, value in sorted(state.properties.items())],
        "Consumer Subscription": subscriptions,
        "Consumer Offset": [f"{columns}  {'#Consumer Offset':<20}", *offsets],
        "Consumer MQ Detail": [f"{columns}  {'#ProcessQueueInfo':<20}", *caches],
        "Consumer RT&TPS": [rate_columns, *rates],
    }
    text = "\n\n".join(f"#{title}#\n{lines(rows)}" for title, rows in sections.items())
    return text if state.stacks is None else f"{text}\n\n#Consumer jstack#\n{state.stacks}"


def process_queue(info: ProcessQueueInfo) -> str:
    return (
        f"ProcessQueueInfo [commitOffset={info.commit_offset}, cachedMsgMinOffset={info.cached_msg_min_offset},"
        f" cachedMsgMaxOffset={info.cached_msg_max_offset}, cachedMsgCount={info.cached_msg_count},"
        f" cachedMsgSizeInMiB={info.cached_msg_size_in_mi_b}, transactionMsgMinOffset={info.transaction_msg_min_offset},"
        f" transactionMsgMaxOffset={info.transaction_msg_max_offset}, transactionMsgCount={info.transaction_msg_count},"
        f" locked={boolean(info.locked)}, tryUnlockTimes={info.try_unlock_times},"
        f" lastLockTimestamp={_digits(info.last_lock_timestamp)}, droped={boolean(info.droped)},"
        f" lastPullTimestamp={_digits(info.last_pull_timestamp)}, lastConsumeTimestamp={_digits(info.last_consume_timestamp)}]"
    )


def blocked_text(blocked: BlockedQueue) -> str:
    """Return the line for a queue that is not consumed."""
    where = f"{blocked.client_id} {message_queue(blocked.queue)}"
    since = "" if blocked.since_ms is None else f", {blocked.since_ms}ms"
    if blocked.reason == NOT_LOCKED:
        return f"{where} can't lock for a while{since}\n"
    if blocked.reason == NOT_CONSUMING:
        return f"{where} can't consume for a while, maybe blocked{since}\n"
    return f"{where} unlock {blocked.unlock_tries} times, still failed\n"


def _digits(ms: int) -> str:
    """Return `yyyyMMddHHmmssSSS` in local time."""
    return f"{datetime.fromtimestamp(ms // 1000).astimezone():%Y%m%d%H%M%S}{ms % 1000:03}"

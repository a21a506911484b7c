"""Commits a query's progress as the offsets of a consumer group, for tools that show lag by group.

The connector never reads these offsets: a query resumes from its checkpoint. Java's tools find the brokers of a group by its
retry topic, which a broker creates on the first heartbeat of a consumer of that group. For a group without a retry topic, a
consumer is therefore registered and unregistered once. A group that has one is left alone: it may have live consumers, and a
heartbeat would make them rebalance. [RemoteBrokerOffsetStore]
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ariane.errors import ArianeError, ReplyError
from ariane.model.message import MessageQueue
from ariane.model.topic import retry_topic
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.clients import ConsumerData, HeartbeatData, UnregisterClient
from ariane.protocol.requests.messaging import UpdateConsumerOffset
from ariane.spark.read.offset_ranges import Positions
from ariane.spark.read.pull_client import BlockingCluster
from ariane.spark.wire.blocking_connection import Request

log = logging.getLogger("ariane.spark")

CLIENT_ID = "127.0.0.1@ariane-spark"


class GroupOffsets:
    """The offsets of one consumer group, as committed by this process."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._committed: Positions = {}
        self._is_registered = False

    def commit(self, cluster: BlockingCluster, positions: Positions) -> dict[MessageQueue, ArianeError]:
        """Commit the positions that changed since the last call; return the failures, which the next call retries."""
        changed = {queue: position for queue, position in positions.items() if self._committed.get(queue) != position}
        if changed and not self._is_registered:
            self._register_group(cluster, list(changed))
        requests = [
            (
                queue,
                Request(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, position),
                ),
            )
            for queue, position in changed.items()
        ]
        responses = zip(changed, cluster.request_all(requests), strict=True)
        failed = {queue: result for queue, result in responses if isinstance(result, ArianeError)}
        self._committed |= {queue: position for queue, position in changed.items() if queue not in failed}
        return failed

    def _register_group(self, cluster: BlockingCluster, queues: Sequence[MessageQueue]) -> None:
        consumer = ConsumerData(consume_type="CONSUME_ACTIVELY", group_name=self._group)
        heartbeat = HeartbeatData(CLIENT_ID, (consumer,))
        requests = (
            Request(RequestCode.HEART_BEAT, body=fastjson.write(heartbeat)),
            Request(RequestCode.UNREGISTER_CLIENT, UnregisterClient(CLIENT_ID, consumer_group=self._group)),
        )
        queue_by_broker = {queue.broker: queue for queue in queues}.values()
        try:
            if cluster.queues(retry_topic(self._group)):
                self._is_registered = True
                return
            for request in requests:
                for result in cluster.request_all([(queue, request) for queue in queue_by_broker]):
                    if isinstance(result, ArianeError):
                        raise result
            self._is_registered = True
        except ArianeError as error:
            self._is_registered = isinstance(error, ReplyError)  # a broker that refused will refuse again
            log.warning(
                "Could not register group %s; tools that look for its retry topic may not list it: %s",
                self._group,
                error,
            )

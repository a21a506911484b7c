"""Message traces that a proxy writes for clients that write none, in the trace topic of the cluster, if it has one."""

from __future__ import annotations

import itertools
import logging
from typing import Self

from ariane.clock import Clock
from ariane.errors import ArianeError, ReplyError
from ariane.model import message as names
from ariane.model.topic import TRACE_TOPIC
from ariane.net.pools.requester import Requester
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.codes import RequestCode
from ariane.protocol.records import properties
from ariane.protocol.requests.messaging import SendMessage
from ariane.proxy.cluster.cluster_routes import ClusterRoutes
from ariane.proxy.traces.message_traces import MessageTraces, TraceSource
from ariane.proxy.traces.trace_writer import FLUSH_S, TraceMessage, TraceWriter

log = logging.getLogger("ariane.proxy")

CHECK_S = 10.0  # whether there is a trace topic
REGION = "DefaultRegion"
PRODUCER = "_INNER_TRACE_PRODUCER"


class ClusterTraces:
    """The traces of one proxy.

    Args:
        routes: Of the trace topic.
        pool: Connections of the proxy's own.
        is_on: Whether the proxy writes traces.
        clock: Of the proxy, from which all times of records are.
    """

    def __init__(self, *, routes: ClusterRoutes, pool: Requester, is_on: bool, clock: Clock) -> None:
        self._routes = routes
        self._pool = pool
        self._is_on = is_on
        self._clock = clock
        self._has_topic = False  # until `check`
        self._turn = itertools.count()
        self._tasks = BackgroundTasks("proxy traces", clock=clock)
        self._writer = TraceWriter(self, clock)
        source = TraceSource(broker_addr="", trace_topic=TRACE_TOPIC, region=REGION)
        self.grpc = MessageTraces(
            writer=self._writer, source=source, is_on=lambda: self._has_topic, now_ms=clock.now_ms
        )
        """Of clients of the gRPC port."""

    async def __aenter__(self) -> Self:
        if self._is_on:
            await self._check()
            self._tasks.repeat(CHECK_S, self._check, "check the trace topic")
            self._tasks.repeat(FLUSH_S, self.flush, "write traces")
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._tasks.close()
        await self._writer.close()

    async def flush(self) -> None:
        """Write what has happened since the last call."""
        self.grpc.end_due()
        await self._writer.flush()

    def counts(self) -> dict[str, int]:
        """Return the number of records by outcome, for metrics."""
        writer = self._writer
        return {"written": writer.written, "dropped": writer.dropped, "untracked": self.grpc.untracked}

    async def _check(self) -> None:
        """Note whether the cluster has the trace topic. Without it, nothing is traced."""
        had_topic = self._has_topic
        try:
            await self._routes.topic(TRACE_TOPIC)
            self._has_topic = True
        except ReplyError as error:
            self._has_topic = False
            if had_topic:
                log.warning("Writing no traces: %s", error.remark)
        except ArianeError:
            pass  # no name server responds: the brokers may go on

    async def store(self, message: TraceMessage) -> None:
        """Store a trace message. [TraceStore]"""
        routed = list((await self._routes.topic(TRACE_TOPIC)).values())
        answering = [each for each in routed if each.on_broker.answers] or routed
        number = next(self._turn)
        addr, on_broker = answering[number % len(answering)][:2]
        header = SendMessage(
            producer_group=PRODUCER,
            topic=TRACE_TOPIC,
            default_topic="",
            default_topic_queue_nums=0,
            queue_id=number // len(answering) % max(1, on_broker.topic.write_queue_nums),
            sys_flag=0,
            born_ms=self._clock.now_ms(),
            flag=0,
            properties=properties.join({names.KEYS: " ".join(message.keys)}),
        )
        try:
            await self._pool.request_ok(addr, RequestCode.SEND_MESSAGE_V2, header, message.body)
        except ReplyError:
            raise
        except ArianeError:
            self._routes.on_silence(addr)
            raise

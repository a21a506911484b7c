"""Message traces that the broker writes for clients that write none: its own records, in its trace topic."""

from __future__ import annotations

from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery.post_store import PostStoreDispatcher
from ariane.broker.delivery.remoting_traces import RemotingTraces
from ariane.clock import Clock
from ariane.model import clock_offset
from ariane.model import message as names
from ariane.model.clock_offset import ClockOffset
from ariane.protocol.records import properties
from ariane.proxy.traces.message_traces import MessageTraces, TraceSource
from ariane.proxy.traces.trace_writer import FLUSH_S, TraceMessage, TraceWriter
from ariane.store.message_store import MessageStore, RecordDraft

__all__ = ["FLUSH_S", "ServerTraces"]

_OWN_CLOCK = ClockOffset(0, 0)


class ServerTraces:
    """The traces of one broker."""

    def __init__(
        self,
        *,
        settings: DynamicConfig,
        store: MessageStore,
        dispatcher: PostStoreDispatcher,
        addr: str,
        clock: Clock,
    ) -> None:
        self._settings = settings  # whether traces are on, and their topic
        self._store = store
        self._dispatcher = dispatcher
        self._clock = clock
        # Times of the records are this broker's: readers need not correct them.
        self._clock_text = clock_offset.to_text([(addr, _OWN_CLOCK)])
        config = settings.current
        self._writer = TraceWriter(self, clock)
        source = TraceSource(addr, config.msg_trace_topic_name, config.region_id)
        self.grpc = MessageTraces(writer=self._writer, source=source, is_on=self._is_grpc_on, now_ms=clock.now_ms)
        """Of clients of the gRPC port."""
        self.remoting = RemotingTraces(
            settings=settings,
            traces=MessageTraces(
                writer=self._writer,
                source=source,
                is_on=lambda: settings.current.traces_remoting,
                now_ms=clock.now_ms,
            ),
            store=store,
            broker_name=config.broker_name,
            clock=clock,
        )
        """Of clients of 4.x."""

    async def flush(self) -> None:
        """Write what has happened since the last call."""
        self.grpc.end_due()
        self.remoting.traces.end_due()
        await self._writer.flush()

    async def close(self) -> None:
        """Write pending records at last."""
        await self._writer.close()

    def counts(self) -> dict[str, int]:
        """Return the number of records by outcome, for metrics."""
        writer, remoting = self._writer, self.remoting
        untracked = self.grpc.untracked + remoting.traces.untracked + remoting.pulled.dropped + remoting.unreadable
        return {"written": writer.written, "dropped": writer.dropped, "untracked": untracked}

    async def store(self, message: TraceMessage) -> None:
        """Store a trace message in the name of the client. [TraceStore]"""
        table = {names.KEYS: " ".join(message.keys), clock_offset.PROPERTY: self._clock_text}
        draft = RecordDraft(
            topic=self._settings.current.msg_trace_topic_name,
            queue_id=0,
            body=message.body,
            born_ms=self._clock.now_ms(),
            born_host=message.client.packed,
            properties=properties.join(table),
        )
        self._store.put(draft)
        self._dispatcher.on_stored()

    def _is_grpc_on(self) -> bool:
        config = self._settings.current
        return config.grpc_trace_enable and config.trace_on and not config.is_slave

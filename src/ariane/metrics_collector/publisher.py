"""The collector: polls in rounds and publishes each sample to a topic.

    BrokerPoller.poll() → samples → pending (MAX_PENDING messages) → Producer → SAMPLES_TOPIC

While no broker accepts samples, the newest ones stay pending; later samples report how many were dropped.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from ariane.client.instance import validation
from ariane.client.instance.settings import ClientSettings
from ariane.client.producer import Producer
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.cluster.admin import Admin
from ariane.errors import ArianeError, ConfigError, RouteNotFound
from ariane.metrics_collector.poller import DEFAULT_LIMITS, BrokerPoller, PollLimits
from ariane.metrics_collector.sample import Sample, encode_messages
from ariane.model.message import Message
from ariane.model.topic import SAMPLES_TOPIC

log = logging.getLogger("ariane.metrics_collector")

GROUP = "ariane-collector"
QUEUES = 1  # per master: samples are small and carry their own time, so their order does not matter
INTERVAL_MIN_S = 1.0
MAX_PENDING = 2_000  # messages: half an hour of a cluster of six brokers


class PollingRound(NamedTuple):
    """Outcome of a round."""

    samples: Sequence[Sample]
    pending: int
    dropped: int
    error: ArianeError | None

    @property
    def unavailable(self) -> dict[str, str]:
        """Errors of the brokers that did not respond, by name and id."""
        return {
            f"{sample.broker}/{sample.broker_id}": sample.error for sample in self.samples if sample.error is not None
        }


class CollectorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a collector.

    Raises:
        ConfigError: the interval is too short.
    """

    interval_s: float = 5.0  # seconds from the start of a round to the start of the next
    topic: str = SAMPLES_TOPIC  # topic for the samples
    once: bool = False  # whether to end after one round
    collector: str = ""  # name of this collector in its samples; empty: the host name
    limits: PollLimits = DEFAULT_LIMITS  # maximum numbers of topics and groups per broker and round

    def __post_init__(self) -> None:
        if self.interval_s < INTERVAL_MIN_S:
            fix = f"expected at least {INTERVAL_MIN_S:g} s: brokers count in steps of ten seconds, and clients commit every five"
            raise ConfigError("interval", self.interval_s, fix)


async def run_collector(
    namesrv: str,
    options: CollectorOptions | None = None,
    *,
    settings: ClientSettings | None = None,
    on_round: Callable[[PollingRound], None] = lambda _: None,
    stop: asyncio.Event | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Poll all brokers and publish samples, once or until `stop` is set. Creates the topic on every master if it does not exist.

    Raises:
        ArianeError: no cluster responds at the start (later outages are waited for), or with `once` no broker accepted the samples.
    """
    options, settings = options or CollectorOptions(), settings or ClientSettings()
    servers = validation.name_servers(namesrv)
    async with Admin(servers, client=settings) as admin:
        await _ensure_topic(admin, options.topic)
        poller = BrokerPoller(
            admin.peers,
            servers,
            collector=options.collector or socket.gethostname(),
            interval_ms=round(options.interval_s * 1000),
            limits=options.limits,
            clock=clock,
        )
        async with Producer(namesrv, GROUP, client=settings) as producer:
            rounds = CollectorRounds(poller=poller, producer=producer, options=options, clock=clock)
            await rounds.run(on_round, stop or asyncio.Event())


class CollectorRounds:
    """Polls and publishes in rounds."""

    def __init__(self, *, poller: BrokerPoller, producer: Producer, options: CollectorOptions, clock: Clock) -> None:
        self._poller = poller
        self._producer = producer
        self._options = options
        self._clock = clock
        # Broker names and encoded samples, oldest first.
        self._pending: deque[tuple[str, bytes]] = deque()

    async def run(self, on_round: Callable[[PollingRound], None], stop: asyncio.Event) -> None:
        """Run rounds until `stop` is set, or one round.

        Raises:
            ArianeError: no broker accepted the samples of the only round.
        """
        while True:
            started = self._clock.monotonic()
            outcome = await self._run_round()
            on_round(outcome)
            if self._options.once:
                if outcome.error is not None:
                    raise outcome.error
                return
            if await _wait_or_stop(stop, self._options.interval_s - (self._clock.monotonic() - started), self._clock):
                return

    async def _run_round(self) -> PollingRound:
        samples = await self._poller.poll()
        for sample in samples:
            self._pending.extend((sample.broker, body) for body in encode_messages(sample))
        while len(self._pending) > MAX_PENDING:
            self._pending.popleft()
            self._poller.dropped += 1
        error = await self._send_pending()
        return PollingRound(samples, len(self._pending), self._poller.dropped, error)

    async def _send_pending(self) -> ArianeError | None:
        """Send pending samples, oldest first. Return the error at which it stopped, if any."""
        while self._pending:
            broker, body = self._pending[0]
            try:
                await self._producer.send(Message(topic=self._options.topic, body=body, keys=[broker]))
            except ArianeError as error:
                return error
            self._pending.popleft()
        return None


async def _wait_or_stop(stop: asyncio.Event, seconds: float, clock: Clock) -> bool:
    """Wait for the next round and return whether `stop` was set meanwhile."""
    sleeping, stopped = asyncio.ensure_future(clock.sleep(max(0.0, seconds))), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((sleeping, stopped), return_when=asyncio.FIRST_COMPLETED)
        return stop.is_set()
    finally:
        sleeping.cancel()
        stopped.cancel()


async def _ensure_topic(admin: Admin, topic: str) -> None:
    """Create the topic unless a name server has it."""
    try:
        await admin.routing.fetch_route(topic)
    except RouteNotFound:
        changes = await admin.create_topic(topic, queues=QUEUES)
        log.info("Created topic %s on %s", topic, ", ".join(change.addr for change in changes))

"""The collector: polls in rounds and publishes each sample to a topic.

    BrokerPoller.poll() → samples → pending (MAX_PENDING messages) → Producer → SAMPLES_TOPIC

While no broker accepts samples, the newest ones stay pending; later samples report how many were dropped.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ariane.client import validation
from ariane.client.producer import Producer
from ariane.client.settings import ClientSettings
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.cluster import topic_admin
from ariane.errors import ArianeError, ConfigError, RouteNotFound
from ariane.metrics_collector.poller import DEFAULT_LIMITS, BrokerPoller, PollLimits
from ariane.metrics_collector.sample import Sample, encode_messages
from ariane.model.message import Message
from ariane.model.topic import SAMPLES_TOPIC
from ariane.net.connection_pool import ConnectionPool
from ariane.net.name_servers import NameServerClient
from ariane.protocol import signing

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


async def run_collector(
    namesrv: str,
    *,
    interval_s: float = 5.0,
    topic: str = SAMPLES_TOPIC,
    once: bool = False,
    collector: str = "",
    limits: PollLimits = DEFAULT_LIMITS,
    settings: ClientSettings | None = None,
    on_round: Callable[[PollingRound], None] = lambda _: None,
    stop: asyncio.Event | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Poll all brokers and publish samples, once or until `stop` is set. Creates the topic on every master if it does not exist.

    Args:
        namesrv: name server addresses, separated by ';'.
        interval_s: seconds from the start of a round to the start of the next.
        topic: topic for the samples.
        once: do one round.
        collector: name of this collector in its samples; default: the host name.
        limits: maximum numbers of topics and groups per broker and round.
        settings: settings of the client instance, with the credentials.
        on_round: called after each round.
        stop: ends the collector when set.
        clock: source of time.

    Raises:
        ConfigError: the interval is too short.
        ArianeError: no cluster responds at the start (later outages are waited for), or with `once` no broker accepted the samples.
    """
    if interval_s < INTERVAL_MIN_S:
        fix = f"expected at least {INTERVAL_MIN_S:g} s: brokers count in steps of ten seconds, and clients commit every five"
        raise ConfigError("interval", interval_s, fix)
    settings = settings or ClientSettings()
    credentials = settings.credentials
    sign = functools.partial(signing.sign, credentials) if credentials else None
    servers = validation.name_servers(namesrv)
    async with ConnectionPool(sign=sign) as peers:
        await _ensure_topic(peers, servers, topic)
        sampler = BrokerPoller(
            peers,
            servers,
            collector=collector or socket.gethostname(),
            interval_ms=round(interval_s * 1000),
            limits=limits,
            clock=clock,
        )
        async with Producer(GROUP, namesrv, client=settings) as producer:
            await _rounds(sampler, producer, topic, interval_s, once, on_round, stop or asyncio.Event(), clock)


async def _rounds(
    sampler: BrokerPoller,
    producer: Producer,
    topic: str,
    interval_s: float,
    once: bool,
    on_round: Callable[[PollingRound], None],
    stop: asyncio.Event,
    clock: Clock,
) -> None:
    waiting: deque[tuple[str, bytes]] = deque()
    while True:
        began = clock.monotonic()
        samples = await sampler.poll()
        for sample in samples:
            waiting.extend((sample.broker, body) for body in encode_messages(sample))
        while len(waiting) > MAX_PENDING:
            waiting.popleft()
            sampler.dropped += 1
        fault = await _send(producer, topic, waiting)
        on_round(PollingRound(samples, len(waiting), sampler.dropped, fault))
        if once:
            if fault is not None:
                raise fault
            return
        if await _wait_or_stop(stop, interval_s - (clock.monotonic() - began), clock):
            return


async def _send(producer: Producer, topic: str, waiting: deque[tuple[str, bytes]]) -> ArianeError | None:
    """Send pending samples, oldest first. Return the error at which it stopped, if any."""
    while waiting:
        broker, body = waiting[0]
        try:
            await producer.send(Message(topic=topic, body=body, keys=[broker]))
        except ArianeError as error:
            return error
        waiting.popleft()
    return None


async def _wait_or_stop(stop: asyncio.Event, seconds: float, clock: Clock) -> bool:
    """Wait for the next round and return whether `stop` was set meanwhile."""
    pause, told = asyncio.ensure_future(clock.sleep(max(0.0, seconds))), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((pause, told), return_when=asyncio.FIRST_COMPLETED)
        return stop.is_set()
    finally:
        pause.cancel()
        told.cancel()


async def _ensure_topic(peers: ConnectionPool, servers: Sequence[str], topic: str) -> None:
    """Create the topic unless a name server has it."""
    try:
        await NameServerClient(peers, servers).fetch_route(topic)
    except RouteNotFound:
        brokers = await topic_admin.create_topic(peers, servers, topic, QUEUES)
        log.info("Created topic %s on %s", topic, ", ".join(brokers))

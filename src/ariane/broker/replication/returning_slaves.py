"""The start of a SYNC_MASTER: sends would fail until its slaves are connected again, so that producers wait or use other brokers.

    start ─► the name servers list a slave? ─ no ─► register
                      └─ yes ─► register without write permission ─► a slave has the log, or LIMIT_S is over ─► register again

With failover the agent decides when a master registers.
"""

from __future__ import annotations

import asyncio
import logging

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.lifecycle.registration import Registration
from ariane.broker.replication.replication import ReplicationFeed
from ariane.model.topic import PERM_WRITE
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.requests.routing import MASTER_ID

log = logging.getLogger("ariane.broker.replication.returning_slaves")

LIMIT_S = 15.0  # slaves of Java connect again after 5 s, and report first after another 5 s
POLL_S = 0.05


async def start_registration(
    config: BrokerConfig, registration: Registration, feed: ReplicationFeed, tasks: BackgroundTasks, log_end: int
) -> None:
    """Register with the name servers; without write permission while listed slaves lack a part of the log up to `log_end`."""
    slaves = await _listed_slaves(config, registration) if config.broker_role == "SYNC_MASTER" else ()
    if slaves:
        registration.withheld_permission = PERM_WRITE
        log.info("Registering without write permission until a slave has all messages: %s", ", ".join(slaves))
        tasks.start(_allow_writes(registration, feed, log_end, slaves), "wait for slaves")
    await registration.start()


async def _listed_slaves(config: BrokerConfig, registration: Registration) -> tuple[str, ...]:
    route = await registration.route(config.broker_name)  # each broker has a topic of its name
    if route is None:
        return ()
    return tuple(
        addr
        for broker in route.broker_datas
        if broker.broker_name == config.broker_name
        for broker_id, addr in broker.broker_addrs.items()
        if broker_id != MASTER_ID
    )


async def _allow_writes(
    registration: Registration, feed: ReplicationFeed, log_end: int, slaves: tuple[str, ...]
) -> None:
    try:
        async with asyncio.timeout(LIMIT_S):
            while not feed.has_replicas(log_end):  # noqa: ASYNC110 - no event says that enough members are in sync
                await asyncio.sleep(POLL_S)
        log.info("Slaves have all messages: registering with write permission")
    except TimeoutError:
        log.warning(
            "Registering with write permission, although too few slaves have all messages after %g s, and sends fail until then:"
            " start %s",
            LIMIT_S,
            ", ".join(slaves),
        )
    registration.allow()

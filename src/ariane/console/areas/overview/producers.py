"""Producers: the clients that are connected to brokers as members of producer groups.

Brokers register a producer by its group and its client id, not by the topics that it sends to. A filter by topic therefore
selects the brokers of the topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerServer, BrokerUnavailable
from ariane.console.areas.admin_results import texts_of
from ariane.console.services import ConsoleServices
from ariane.console.web.paging import ListQuery, Page, paginate, sort_keys
from ariane.console.web.view_model import PartialView, View
from ariane.errors import NotFound
from ariane.protocol.requests.admin import ClientConnection
from ariane.protocol.requests.brokers import ProducerInfo
from ariane.protocol.versions import version_name


class ProducerQuery(ListQuery):
    """Which producers to return."""

    group: str = ""
    """Only this producer group; with `topic`, brokers without a list of all producers are asked about the group, too."""
    topic: str = ""
    """Only producers that are connected to brokers of this topic."""


class ProducerRow(View):
    """A client in a producer group."""

    group: str
    client_id: str
    addr: str
    """Address of the client, `ip:port`, at the first of its brokers."""
    language: str | None
    """Language of the client."""
    version: str
    """Version of the client's library."""
    last_update_ms: int | None
    """Last heartbeat at any broker, in milliseconds since the epoch; null: the broker does not report it."""
    brokers: list[str]
    """Names of the brokers to which it is connected."""


class ProducersView(PartialView):
    """Connected producers."""

    group: str
    """Group that was asked for; empty: all."""
    topic: str
    """Topic that was asked for; empty: all brokers."""
    groups: int
    """Producer groups with a connected client."""
    producers: Page[ProducerRow]
    """Clients; one that is in several groups has a row for each."""


COLUMNS = sort_keys(
    "client_id",
    "addr",
    "language",
    "version",
    group=lambda row: (row.group, row.client_id),
    lastUpdate="last_update_ms",
)


async def producer_list(services: ConsoleServices, query: ProducerQuery) -> ProducersView:
    """Return the connected producers."""
    as_of_ms = services.clock.now_ms()
    admin = services.admin()
    answers = await admin.all_producers(await admin.masters_of(query.topic) if query.topic else None)
    unavailable: tuple[BrokerUnavailable, ...] = answers.unavailable
    rows = _rows(answers.values)
    # Brokers before 4.9 have no list of all producers, but respond about one group.
    if answers.unavailable and query.group and query.topic:
        connected, unavailable = await _connected(admin, query.group, query.topic)
        rows += _missing_rows(query.group, connected, rows)
    shown = [row for row in rows if not query.group or row.group == query.group]
    return ProducersView.of(
        query,
        as_of_ms=as_of_ms,
        unavailable=texts_of(unavailable),
        groups=len({row.group for row in shown}),
        producers=paginate(
            shown, query, name=lambda row: f"{row.group} {row.client_id} {row.addr}", columns=COLUMNS, sort="group"
        ),
    )


async def _connected(
    admin: Admin, group: str, topic: str
) -> tuple[tuple[ClientConnection, ...], tuple[BrokerUnavailable, ...]]:
    try:
        return await admin.producer_connections(group, topic)
    except NotFound:
        return (), ()


def _rows(values: Iterable[tuple[BrokerServer, dict[str, tuple[ProducerInfo, ...]]]]) -> list[ProducerRow]:
    """Return one row per group and client, whatever the number of its brokers."""
    clients: dict[tuple[str, str], list[tuple[str, ProducerInfo]]] = {}
    for server, groups in values:
        for group, producers in groups.items():
            for producer in producers:
                clients.setdefault((group, producer.client_id), []).append((server.broker, producer))
    return [
        ProducerRow.of(
            copies[0][1],
            group=group,
            addr=copies[0][1].remote_ip.lstrip("/"),
            version=version_name(copies[0][1].version),
            last_update_ms=max(producer.last_update_ms for _, producer in copies) or None,
            brokers=sorted({broker for broker, _ in copies}),
        )
        for (group, client_id), copies in clients.items()
    ]


def _missing_rows(
    group: str, connections: Iterable[ClientConnection], rows: Iterable[ProducerRow]
) -> list[ProducerRow]:
    listed = {row.client_id for row in rows if row.group == group}
    return [
        ProducerRow.of(
            client,
            group=group,
            addr=client.client_addr.lstrip("/"),
            version=version_name(client.version),
            last_update_ms=None,
            brokers=[],
        )
        for client in connections
        if client.client_id not in listed
    ]

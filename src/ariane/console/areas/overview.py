"""Overview: the brokers of the cluster."""

from __future__ import annotations

from ariane.console.services import ConsoleServices
from ariane.console.web.view_model import View


class OverviewBroker(View):
    """A broker on the overview."""

    name: str
    """Broker name, which a master and its slaves share."""
    addr: str
    """Registered address."""
    is_master: bool
    """Whether it accepts changes."""
    put_tps: float | None
    """Messages per second that were stored, over the last 10 seconds; null: unknown."""


class OverviewView(View):
    """The overview."""

    as_of_ms: int
    """Time of the values, in milliseconds since the epoch."""
    unavailable: list[str]
    """Servers that did not respond, with the reason."""
    brokers: list[OverviewBroker]
    """All registered brokers."""


async def overview(services: ConsoleServices) -> OverviewView:
    """Return the overview."""
    as_of_ms = services.clock.now_ms()
    async with services.admin() as admin:
        servers = await admin.select_brokers(with_slaves=True)
        answers = await admin.fetch_runtimes(servers)
    runtimes = dict(answers.values)
    rows = [
        OverviewBroker(
            name=server.broker,
            addr=server.addr,
            is_master=server.is_master,
            put_tps=runtimes[server].put_tps.ten_s if server in runtimes else None,
        )
        for server in servers
    ]
    return OverviewView(as_of_ms=as_of_ms, unavailable=[str(broker) for broker in answers.unavailable], brokers=rows)

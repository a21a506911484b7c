"""The audit logs of brokers and name servers: who changed what with which account, and refused requests."""

from __future__ import annotations

from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerServer, BrokerUnavailable
from ariane.console.areas.access.audit_trail import TimeRangeQuery, TimeRangeView
from ariane.console.areas.admin_results import server_name, texts_of
from ariane.console.services import ConsoleServices
from ariane.console.texts.translation import gettext_noop
from ariane.console.web.paging import Page, paginate
from ariane.console.web.view_model import PartialView, View
from ariane.errors import UsageError
from ariane.protocol.requests.audit import RESULTS, GetAuditLog

RECORDS_MAX = 1_000  # newest records of each server that are searched and shown
RESULT_TEXTS = (
    gettext_noop("done"), gettext_noop("failed"), gettext_noop("refused"), gettext_noop("unknown"), gettext_noop("lost"),
)  # fmt: skip


class ServerAuditRow(View):
    """A change of a server, or a request that was refused."""

    number: int
    """Count of the server's records. A gap shows that records are missing."""
    time_ms: int
    """Time of the answer."""
    server: str
    """Broker name and id; of a name server its address."""
    request: str
    """Name of the request code."""
    result: str
    """`done`, `failed`, `refused`, `unknown` (the client left before the answer) or `lost` (records)."""
    resource: str
    """Topics, groups, accounts and settings that the request names."""
    account: str
    """Access key of the request."""
    proof: str
    """How the account is proven: `signature`, `certificate`, or empty: not at all."""
    address: str
    """Where the request came from."""
    reason: str
    """Why it failed or was refused."""
    count: int
    """Requests that the record stands for."""


class ServerAuditQuery(TimeRangeQuery):
    """Which records to return, newest first."""

    result: str = ""
    """Only records with this result."""


class ServerAuditView(PartialView, TimeRangeView):
    """A page of the servers' audit logs."""

    result: str
    """Result, as in the query."""
    cut: list[str]
    """Servers with more records than are searched: only their newest 1,000 are shown."""
    records: Page[ServerAuditRow]
    """Records, newest first."""


async def server_audit(services: ConsoleServices, query: ServerAuditQuery) -> ServerAuditView:
    """Return a page of the audit logs of all brokers, and of name servers that have one, newest first.

    Raises:
        UsageError: a time or the result is invalid, or the range is empty.
    """
    if query.result and query.result not in RESULTS:
        raise UsageError("result", query.result, f"expected one of: {', '.join(RESULTS)}")
    now_ms = services.clock.now_ms()
    since_ms, until_ms = query.bounds_ms(now_ms)
    selection = GetAuditLog(since_ms or 0, until_ms or 0, result=query.result)
    async with services.admin() as admin:
        name_servers, silent = await _name_servers(admin)
        servers = [*await admin.select_brokers(with_slaves=True), *name_servers]
        answers = await admin.audit_records(servers, selection, limit=RECORDS_MAX)
    rows = [ServerAuditRow.of(record, server=_name(server)) for server, part in answers.values for record in part]
    page = paginate(
        rows, query, name=_search_text, columns={"time": lambda row: row.time_ms}, sort="time", is_descending=True
    )
    return ServerAuditView.of(
        query,
        as_of_ms=now_ms,
        unavailable=texts_of((*silent, *answers.unavailable)),
        cut=sorted(_name(server) for server, part in answers.values if len(part) == RECORDS_MAX),
        records=page,
    )


async def _name_servers(admin: Admin) -> tuple[list[BrokerServer], tuple[BrokerUnavailable, ...]]:
    """Return the name servers that have an audit log, and those that did not say so. Java's have none."""
    settings = await admin.fetch_name_server_config()
    servers = [
        BrokerServer("", "", 0, server.addr)
        for server, values in settings.values
        if values.get("auditLogEnable") == "true"
        or (values.get("auditLogEnable") == "auto" and values.get("aclEnable") == "true")
    ]
    return servers, settings.unavailable


def _name(server: BrokerServer) -> str:
    return server_name(server) if server.broker else f"name server {server.addr}"


def _search_text(row: ServerAuditRow) -> str:
    return f"{row.account} {row.address} {row.request} {row.resource} {row.server} {row.reason} {row.number:09}"

"""The audit log: page, exports and REST."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from ariane.console.areas.access import audit_trail, server_audit
from ariane.console.areas.access.audit_trail import AuditTrailView, TimeRangeQuery
from ariane.console.areas.access.server_audit import ServerAuditQuery, ServerAuditView
from ariane.console.web.dependencies import FromQuery, Services
from ariane.console.web.page_router import PageRouter

pages = PageRouter(prefix="/audit")
api = APIRouter(prefix="/audit", tags=["audit log"])


@pages.page("", "access/audit/audit.html")
@api.get("")
async def list_audit_entries(services: Services, query: FromQuery[TimeRangeQuery]) -> AuditTrailView:
    """Return a page of the audit log, newest first."""
    return await audit_trail.audit_trail(services, query)


@pages.page("/servers", "access/audit/servers.html")
@api.get("/servers")
async def list_server_audit_records(services: Services, query: FromQuery[ServerAuditQuery]) -> ServerAuditView:
    """Return a page of the audit logs of brokers and name servers, newest first."""
    return await server_audit.server_audit(services, query)


@pages.get("/export.csv")
async def export_csv(services: Services, query: FromQuery[TimeRangeQuery]) -> Response:
    """Return the matching entries as CSV."""
    lines = audit_trail.export_csv(services, audit_trail.audit_query(services, query))
    return StreamingResponse(lines, media_type="text/csv", headers=_attachment("audit.csv"))


@pages.get("/export.jsonl")
async def export_jsonl(services: Services, query: FromQuery[TimeRangeQuery]) -> Response:
    """Return the matching entries as JSON lines."""
    lines = audit_trail.export_jsonl(services, audit_trail.audit_query(services, query))
    return StreamingResponse(lines, media_type="application/jsonl", headers=_attachment("audit.jsonl"))


def _attachment(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}

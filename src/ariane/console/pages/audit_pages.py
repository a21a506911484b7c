"""Page of the audit log, and its export."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from ariane.console.areas.access import audit_trail
from ariane.console.areas.access.audit_trail import AuditTrailQuery
from ariane.console.web.dependencies import Services
from ariane.console.web.rendering import render

router = APIRouter(prefix="/audit")


@router.get("")
async def audit_page(request: Request, services: Services, query: Annotated[AuditTrailQuery, Query()]) -> Response:
    """Return the audit log."""
    return render(request, "audit/audit.html", view=await audit_trail.audit_trail(services, query))


@router.get("/export.csv")
async def export_csv(services: Services, query: Annotated[AuditTrailQuery, Query()]) -> Response:
    """Return the matching entries as CSV."""
    lines = audit_trail.export_csv(services, audit_trail.audit_query(services, query))
    return StreamingResponse(lines, media_type="text/csv", headers=_attachment("audit.csv"))


@router.get("/export.jsonl")
async def export_jsonl(services: Services, query: Annotated[AuditTrailQuery, Query()]) -> Response:
    """Return the matching entries as JSON lines."""
    lines = audit_trail.export_jsonl(services, audit_trail.audit_query(services, query))
    return StreamingResponse(lines, media_type="application/jsonl", headers=_attachment("audit.jsonl"))


def _attachment(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}

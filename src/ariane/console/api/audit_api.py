"""REST of the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ariane.console.areas.access import audit_trail
from ariane.console.areas.access.audit_trail import AuditTrailQuery, AuditTrailView
from ariane.console.web.dependencies import Services

router = APIRouter(prefix="/audit", tags=["audit log"])


@router.get("")
async def list_audit_entries(services: Services, query: Annotated[AuditTrailQuery, Query()]) -> AuditTrailView:
    """Return a page of the audit log, newest first."""
    return await audit_trail.audit_trail(services, query)

"""REST of reports over the pipeline's tables."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ariane.console.areas.reports import report_views
from ariane.console.areas.reports.report_views import ReportListView, ReportQuery, ReportView
from ariane.console.web.dependencies import Services

router = APIRouter(prefix="/reports", tags=["reports"])


@router.get("")
async def list_reports(services: Services) -> ReportListView:
    """Return the names of the reports, and whether there is data for them."""
    return report_views.report_list(services)


@router.get("/{name}")
async def get_report(services: Services, name: str, query: Annotated[ReportQuery, Query()]) -> ReportView:
    """Run a report: lag, tps, latency, delay, transactions or health."""
    return await report_views.run_report(services, name, query)

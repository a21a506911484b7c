"""Pages of reports over the pipeline's tables."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from ariane.console.areas.reports import report_views
from ariane.console.areas.reports.report_views import ReportQuery
from ariane.console.web.dependencies import Services
from ariane.console.web.rendering import render

router = APIRouter(prefix="/reports")

FIRST = "lag"


@router.get("")
async def reports_page(request: Request, services: Services, query: Annotated[ReportQuery, Query()]) -> Response:
    """Return the first report."""
    return await report_page(request, services, FIRST, query)


@router.get("/{name}")
async def report_page(
    request: Request, services: Services, name: str, query: Annotated[ReportQuery, Query()]
) -> Response:
    """Return a report; without a pipeline, how to run one."""
    reports = report_views.report_list(services)
    if not reports.is_available:
        return render(request, "reports/without_pipeline.html", reports=reports)
    view = await report_views.run_report(services, name, query)
    return render(request, "reports/report.html", reports=reports, view=view, query=query)

"""Reports over the pipeline's tables: pages and REST."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ariane.console.areas.reports import report_views
from ariane.console.areas.reports.report_views import ReportListView, ReportQuery, ReportView
from ariane.console.web.dependencies import FromQuery, Services
from ariane.console.web.page_router import PageRouter
from ariane.console.web.rendering import render

pages = PageRouter(prefix="/reports")
api = APIRouter(prefix="/reports", tags=["reports"])

FIRST = "lag"


@api.get("")
async def list_reports(services: Services) -> ReportListView:
    """Return the names of the reports, and whether there is data for them."""
    return report_views.report_list(services)


@api.get("/{name}")
async def get_report(services: Services, name: str, query: FromQuery[ReportQuery]) -> ReportView:
    """Run a report: lag, tps, latency, delay, transactions or health."""
    return await report_views.run_report(services, name, query)


# --- other pages ---


@pages.get("")
async def reports_page(request: Request, services: Services, query: FromQuery[ReportQuery]) -> Response:
    """Return the first report."""
    return await report_page(request, services, FIRST, query)


@pages.get("/{name}")
async def report_page(request: Request, services: Services, name: str, query: FromQuery[ReportQuery]) -> Response:
    """Return a report; without a pipeline, how to run one."""
    reports = report_views.report_list(services)
    if not reports.is_available:
        return render(request, "reports/without_pipeline.html", reports=reports)
    view = await report_views.run_report(services, name, query)
    return render(request, "reports/report.html", reports=reports, view=view, query=query)

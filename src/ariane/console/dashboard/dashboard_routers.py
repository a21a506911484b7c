"""All routers of Apache's dashboard."""

from __future__ import annotations

from fastapi import APIRouter

from ariane.console.dashboard import (
    dashboard_charts,
    dashboard_cluster,
    dashboard_dead_letters,
    dashboard_groups,
    dashboard_login,
    dashboard_messages,
    dashboard_monitors,
    dashboard_operations,
    dashboard_topics,
    dashboard_traces,
)

ROUTERS: tuple[APIRouter, ...] = (
    dashboard_cluster.routes.router,
    dashboard_topics.routes.router,
    dashboard_groups.routes.router,
    dashboard_groups.producer_routes.router,
    dashboard_messages.routes.router,
    dashboard_traces.routes.router,
    dashboard_dead_letters.routes.router,
    dashboard_charts.routes.router,
    dashboard_login.routes.router,
    dashboard_operations.routes.router,
    dashboard_operations.discovery_routes.router,
    dashboard_operations.proxy_routes.router,
    dashboard_operations.test_routes.router,
    dashboard_operations.acl_routes.router,
    dashboard_monitors.routes.router,
)

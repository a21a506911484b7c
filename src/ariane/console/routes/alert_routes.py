"""Alerts: pages and REST of firing alerts with silences, history, rules and channels."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response

from ariane.console.alerts.alert_rules import METRICS, AlertMetric, Severity
from ariane.console.areas.alerts import alert_channels, alerting
from ariane.console.areas.alerts.alert_channels import AlertChannelsView, EmailForm, WebHookForm
from ariane.console.areas.confirmation import DeletionForm
from ariane.console.security.accounts.identity import has_role, identity_of
from ariane.console.security.roles import ConsoleRole
from ariane.console.web.dependencies import FromQuery, ListParameters, Services
from ariane.console.web.page_router import PageRouter
from ariane.console.web.rendering import render
from ariane.console.web.view_model import ChangeResult

pages = PageRouter(prefix="/alerts")
api = APIRouter(prefix="/alerts", tags=["alerts"])

RULES, CHANNELS = "/alerts/rules", "/alerts/channels"


@api.get("")
async def list_alerts(services: Services, query: ListParameters) -> alerting.AlertsView:
    """Return the firing alerts, the most urgent first, and the silences."""
    return alerting.alert_list(services, query)


@pages.page("/history", "alerts/history.html")
@api.get("/history")
async def list_alert_history(services: Services, query: ListParameters) -> alerting.AlertHistoryView:
    """Return the newest begins and ends of alerts."""
    return alerting.alert_history(services, query)


@pages.form("/close")
@api.post("/close")
async def close_alert(services: Services, form: alerting.CloseAlertForm) -> ChangeResult:
    """End a firing alert by hand; it begins again if its condition holds."""
    return alerting.close_alert(services, form)


@pages.form("/silences")
@api.post("/silences")
async def add_silence(request: Request, services: Services, form: alerting.SilenceForm) -> ChangeResult:
    """Suppress notifications for some time."""
    identity = identity_of(request)
    return alerting.add_silence(services, form, account=identity.name if identity else "")


@pages.form("/silences/{silence_id}/end")
@api.delete("/silences/{silence_id}")
async def end_silence(services: Services, silence_id: str) -> ChangeResult:
    """End a silence now."""
    return alerting.end_silence(services, silence_id)


@pages.page("/rules", "alerts/rules.html")
@api.get("/rules")
async def list_alert_rules(services: Services) -> alerting.AlertRulesView:
    """Return all rules."""
    return alerting.alert_rules(services)


@pages.form("/rules", RULES)
@api.post("/rules")
async def add_alert_rule(services: Services, form: alerting.AlertRuleForm) -> ChangeResult:
    """Create a rule."""
    return alerting.save_rule(services, form)


@pages.form("/rules/{rule_id}", RULES)
@api.put("/rules/{rule_id}")
async def change_alert_rule(services: Services, rule_id: str, form: alerting.AlertRuleForm) -> ChangeResult:
    """Replace a rule; its alerts begin again."""
    return alerting.save_rule(services, form, rule_id=rule_id)


@pages.form("/rules/{rule_id}/delete", RULES)
@api.delete("/rules/{rule_id}")
async def delete_alert_rule(services: Services, rule_id: str, form: FromQuery[DeletionForm]) -> ChangeResult:
    """Delete a rule; `confirm` must be its name."""
    return alerting.delete_rule(services, rule_id, form)


@pages.page("/channels", "alerts/channels.html")
@api.get("/channels")
async def list_alert_channels(request: Request, services: Services) -> AlertChannelsView:
    """Return the receivers of notifications, without their secrets."""
    return alert_channels.alert_channels(services, is_admin=has_role(request, ConsoleRole.ADMIN))


@pages.form("/channels/web-hooks", CHANNELS)
@api.post("/channels/web-hooks")
async def add_web_hook(services: Services, form: WebHookForm) -> ChangeResult:
    """Create a web hook."""
    return alert_channels.save_web_hook(services, form)


@pages.form("/channels/web-hooks/{channel_id}", CHANNELS)
@api.put("/channels/web-hooks/{channel_id}")
async def change_web_hook(services: Services, channel_id: str, form: WebHookForm) -> ChangeResult:
    """Replace a web hook."""
    return alert_channels.save_web_hook(services, form, channel_id=channel_id)


@pages.form("/channels/email", CHANNELS)
@api.post("/channels/email")
async def add_email(services: Services, form: EmailForm) -> ChangeResult:
    """Create recipients of e-mail."""
    return alert_channels.save_email(services, form)


@pages.form("/channels/email/{channel_id}", CHANNELS)
@api.put("/channels/email/{channel_id}")
async def change_email(services: Services, channel_id: str, form: EmailForm) -> ChangeResult:
    """Replace recipients of e-mail."""
    return alert_channels.save_email(services, form, channel_id=channel_id)


@pages.form("/channels/{channel_id}/test")
@api.post("/channels/{channel_id}/test")
async def test_alert_channel(services: Services, channel_id: str) -> ChangeResult:
    """Send a test notification."""
    return await alert_channels.send_test(services, channel_id)


@pages.form("/channels/{channel_id}/delete", CHANNELS)
@api.delete("/channels/{channel_id}")
async def delete_alert_channel(services: Services, channel_id: str, form: FromQuery[DeletionForm]) -> ChangeResult:
    """Delete a receiver; `confirm` must be its name."""
    return await alert_channels.delete_channel(services, channel_id, form)


# --- other pages ---


@pages.get("")
async def alert_page(request: Request, services: Services, query: ListParameters) -> Response:
    """Return the firing alerts."""
    view = alerting.alert_list(services, query)
    rules = () if view.silences is None else services.alerts.settings.rules
    return render(request, "alerts/alerts.html", view=view, rules=rules)


@pages.get("/rules/new")
async def new_rule_page(request: Request) -> Response:
    """Return the form for a new rule."""
    return _rule_form(request, None)


@pages.get("/rules/{rule_id}")
async def rule_page(request: Request, services: Services, rule_id: str) -> Response:
    """Return the form of a rule."""
    return _rule_form(request, alerting.alert_rule(services, rule_id))


@pages.get("/channels/new")
async def new_channel_page(request: Request, kind: Literal["webHook", "email"] = "webHook") -> Response:
    """Return the form for a new receiver."""
    return _channel_form(request, None, kind)


@pages.get("/channels/{channel_id}")
async def channel_page(request: Request, services: Services, channel_id: str) -> Response:
    """Return the form of a receiver."""
    channel = alert_channels.alert_channel(services, channel_id)
    return _channel_form(request, channel, channel.kind)


def _rule_form(request: Request, rule: alerting.AlertRuleRow | None) -> Response:
    return render(
        request, "alerts/rule.html", rule=rule, metrics=list(AlertMetric), definitions=METRICS,
        conditions=alerting.CONDITION_TEXTS, severities=list(Severity),
    )  # fmt: skip


def _channel_form(request: Request, channel: alert_channels.AlertChannelRow | None, kind: str) -> Response:
    return render(request, "alerts/channel.html", channel=channel, kind=kind, severities=list(Severity))

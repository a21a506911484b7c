"""Pages of alerts: firing alerts with silences, history, rules and channels."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Form, Request, Response

from ariane.console.alerts.alert_rules import METRICS, AlertMetric, Severity
from ariane.console.areas.alerts import alert_channels, alerting
from ariane.console.areas.alerts.alert_channels import EmailForm, WebHookForm
from ariane.console.areas.alerts.alerting import AlertRuleForm, CloseAlertForm, SilenceForm
from ariane.console.areas.confirmation import DeletionForm
from ariane.console.security.accounts.identity import has_role, identity_of
from ariane.console.security.accounts.roles import ConsoleRole
from ariane.console.web.dependencies import ListParameters, Services
from ariane.console.web.rendering import changed, render

router = APIRouter(prefix="/alerts")

RULES, CHANNELS = "/alerts/rules", "/alerts/channels"


@router.get("")
async def alert_page(request: Request, services: Services, query: ListParameters) -> Response:
    """Return the firing alerts."""
    view = alerting.alert_list(services, query)
    return render(request, "alerts/alerts.html", view=view, rules=services.alerts.settings.rules)


@router.get("/history")
async def history_page(request: Request, services: Services, query: ListParameters) -> Response:
    """Return the begins and ends of alerts."""
    return render(request, "alerts/history.html", view=alerting.alert_history(services, query))


@router.post("/close")
async def close_alert(request: Request, services: Services, form: Annotated[CloseAlertForm, Form()]) -> Response:
    """End a firing alert by hand."""
    return changed(request, alerting.close_alert(services, form).notice)


# --- silences ---


@router.post("/silences")
async def add_silence(request: Request, services: Services, form: Annotated[SilenceForm, Form()]) -> Response:
    """Suppress notifications for some time."""
    identity = identity_of(request)
    result = alerting.add_silence(services, form, account=identity.name if identity else "")
    return changed(request, result.notice)


@router.post("/silences/{silence_id}/end")
async def end_silence(request: Request, services: Services, silence_id: str) -> Response:
    """End a silence now."""
    return changed(request, alerting.end_silence(services, silence_id).notice)


# --- rules ---


@router.get("/rules")
async def rules_page(request: Request, services: Services) -> Response:
    """Return the rules."""
    return render(request, "alerts/rules.html", view=alerting.alert_rules(services))


@router.get("/rules/new")
async def new_rule_page(request: Request) -> Response:
    """Return the form for a new rule."""
    return _rule_form(request, None)


@router.get("/rules/{rule_id}")
async def rule_page(request: Request, services: Services, rule_id: str) -> Response:
    """Return the form of a rule."""
    return _rule_form(request, alerting.alert_rule(services, rule_id))


@router.post("/rules")
async def add_rule(request: Request, services: Services, form: Annotated[AlertRuleForm, Form()]) -> Response:
    """Create a rule."""
    return changed(request, alerting.save_rule(services, form).notice, location=RULES)


@router.post("/rules/{rule_id}")
async def change_rule(
    request: Request, services: Services, rule_id: str, form: Annotated[AlertRuleForm, Form()]
) -> Response:
    """Replace a rule."""
    return changed(request, alerting.save_rule(services, form, rule_id=rule_id).notice, location=RULES)


@router.post("/rules/{rule_id}/delete")
async def delete_rule(
    request: Request, services: Services, rule_id: str, form: Annotated[DeletionForm, Form()]
) -> Response:
    """Delete a rule."""
    return changed(request, alerting.delete_rule(services, rule_id, form).notice, location=RULES)


# --- channels ---


@router.get("/channels")
async def channels_page(request: Request, services: Services) -> Response:
    """Return the receivers of notifications."""
    view = alert_channels.alert_channels(services, is_admin=has_role(request, ConsoleRole.ADMIN))
    return render(request, "alerts/channels.html", view=view)


@router.get("/channels/new")
async def new_channel_page(request: Request, kind: Literal["webHook", "email"] = "webHook") -> Response:
    """Return the form for a new receiver."""
    return _channel_form(request, None, kind)


@router.get("/channels/{channel_id}")
async def channel_page(request: Request, services: Services, channel_id: str) -> Response:
    """Return the form of a receiver."""
    channel = alert_channels.alert_channel(services, channel_id)
    return _channel_form(request, channel, channel.kind)


@router.post("/channels/web-hooks")
async def add_web_hook(request: Request, services: Services, form: Annotated[WebHookForm, Form()]) -> Response:
    """Create a web hook."""
    return changed(request, alert_channels.save_web_hook(services, form).notice, location=CHANNELS)


@router.post("/channels/web-hooks/{channel_id}")
async def change_web_hook(
    request: Request, services: Services, channel_id: str, form: Annotated[WebHookForm, Form()]
) -> Response:
    """Replace a web hook."""
    result = alert_channels.save_web_hook(services, form, channel_id=channel_id)
    return changed(request, result.notice, location=CHANNELS)


@router.post("/channels/email")
async def add_email(request: Request, services: Services, form: Annotated[EmailForm, Form()]) -> Response:
    """Create recipients of e-mail."""
    return changed(request, alert_channels.save_email(services, form).notice, location=CHANNELS)


@router.post("/channels/email/{channel_id}")
async def change_email(
    request: Request, services: Services, channel_id: str, form: Annotated[EmailForm, Form()]
) -> Response:
    """Replace recipients of e-mail."""
    result = alert_channels.save_email(services, form, channel_id=channel_id)
    return changed(request, result.notice, location=CHANNELS)


@router.post("/channels/{channel_id}/test")
async def test_channel(request: Request, services: Services, channel_id: str) -> Response:
    """Send a test notification."""
    return changed(request, (await alert_channels.send_test(services, channel_id)).notice)


@router.post("/channels/{channel_id}/delete")
async def delete_channel(
    request: Request, services: Services, channel_id: str, form: Annotated[DeletionForm, Form()]
) -> Response:
    """Delete a receiver."""
    result = await alert_channels.delete_channel(services, channel_id, form)
    return changed(request, result.notice, location=CHANNELS)


def _rule_form(request: Request, rule: alerting.AlertRuleRow | None) -> Response:
    return render(
        request, "alerts/rule.html", rule=rule, metrics=list(AlertMetric), definitions=METRICS,
        conditions=alerting.CONDITION_TEXTS, severities=list(Severity),
    )  # fmt: skip


def _channel_form(request: Request, channel: alert_channels.AlertChannelRow | None, kind: str) -> Response:
    return render(request, "alerts/channel.html", channel=channel, kind=kind, severities=list(Severity))

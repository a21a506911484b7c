"""REST of alerts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from ariane.console.areas.alerts import alert_channels, alerting
from ariane.console.areas.alerts.alert_channels import AlertChannelsView, EmailForm, WebHookForm
from ariane.console.areas.alerts.alerting import (
    AlertHistoryView,
    AlertRuleForm,
    AlertRulesView,
    AlertsView,
    CloseAlertForm,
    SilenceForm,
)
from ariane.console.areas.confirmation import DeletionForm
from ariane.console.security.accounts.identity import has_role, identity_of
from ariane.console.security.accounts.roles import ConsoleRole
from ariane.console.web.dependencies import ListParameters, Services
from ariane.console.web.view_model import ChangeResult

router = APIRouter(prefix="/alerts", tags=["alerts"])


@router.get("")
async def list_alerts(services: Services, query: ListParameters) -> AlertsView:
    """Return the firing alerts, the most urgent first, and the silences."""
    return alerting.alert_list(services, query)


@router.get("/history")
async def list_alert_history(services: Services, query: ListParameters) -> AlertHistoryView:
    """Return the newest begins and ends of alerts."""
    return alerting.alert_history(services, query)


@router.post("/close")
async def close_alert(services: Services, form: CloseAlertForm) -> ChangeResult:
    """End a firing alert by hand; it begins again if its condition holds."""
    return alerting.close_alert(services, form)


@router.post("/silences")
async def add_silence(request: Request, services: Services, form: SilenceForm) -> ChangeResult:
    """Suppress notifications for some time."""
    identity = identity_of(request)
    return alerting.add_silence(services, form, account=identity.name if identity else "")


@router.delete("/silences/{silence_id}")
async def end_silence(services: Services, silence_id: str) -> ChangeResult:
    """End a silence now."""
    return alerting.end_silence(services, silence_id)


@router.get("/rules")
async def list_alert_rules(services: Services) -> AlertRulesView:
    """Return all rules."""
    return alerting.alert_rules(services)


@router.post("/rules")
async def add_alert_rule(services: Services, form: AlertRuleForm) -> ChangeResult:
    """Create a rule."""
    return alerting.save_rule(services, form)


@router.put("/rules/{rule_id}")
async def change_alert_rule(services: Services, rule_id: str, form: AlertRuleForm) -> ChangeResult:
    """Replace a rule; its alerts begin again."""
    return alerting.save_rule(services, form, rule_id=rule_id)


@router.delete("/rules/{rule_id}")
async def delete_alert_rule(services: Services, rule_id: str, form: Annotated[DeletionForm, Query()]) -> ChangeResult:
    """Delete a rule; `confirm` must be its name."""
    return alerting.delete_rule(services, rule_id, form)


@router.get("/channels")
async def list_alert_channels(request: Request, services: Services) -> AlertChannelsView:
    """Return the receivers of notifications, without their secrets."""
    return alert_channels.alert_channels(services, is_admin=has_role(request, ConsoleRole.ADMIN))


@router.post("/channels/web-hooks")
async def add_web_hook(services: Services, form: WebHookForm) -> ChangeResult:
    """Create a web hook."""
    return alert_channels.save_web_hook(services, form)


@router.put("/channels/web-hooks/{channel_id}")
async def change_web_hook(services: Services, channel_id: str, form: WebHookForm) -> ChangeResult:
    """Replace a web hook."""
    return alert_channels.save_web_hook(services, form, channel_id=channel_id)


@router.post("/channels/email")
async def add_email(services: Services, form: EmailForm) -> ChangeResult:
    """Create recipients of e-mail."""
    return alert_channels.save_email(services, form)


@router.put("/channels/email/{channel_id}")
async def change_email(services: Services, channel_id: str, form: EmailForm) -> ChangeResult:
    """Replace recipients of e-mail."""
    return alert_channels.save_email(services, form, channel_id=channel_id)


@router.post("/channels/{channel_id}/test")
async def test_alert_channel(services: Services, channel_id: str) -> ChangeResult:
    """Send a test notification."""
    return await alert_channels.send_test(services, channel_id)


@router.delete("/channels/{channel_id}")
async def delete_alert_channel(
    services: Services, channel_id: str, form: Annotated[DeletionForm, Query()]
) -> ChangeResult:
    """Delete a receiver; `confirm` must be its name."""
    return await alert_channels.delete_channel(services, channel_id, form)

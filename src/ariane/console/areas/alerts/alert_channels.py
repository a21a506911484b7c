"""Receivers of alert notifications: web hooks and e-mail. Secrets are accepted, and never returned."""

from __future__ import annotations

from typing import TypeVar

from ariane.console.alerts.alert_rules import Severity
from ariane.console.alerts.alert_service import find, new_id
from ariane.console.alerts.channels import (
    AlertChannel,
    DeliveryFailed,
    MailSecurity,
    MailTarget,
    WebHookTarget,
    masked_url,
)
from ariane.console.areas.confirmation import DeletionForm, check_confirmed
from ariane.console.services import ConsoleServices
from ariane.console.web.view_model import ChangeForm, ChangeResult, View
from ariane.errors import ConfigError, ServerUnavailable

Target = TypeVar("Target", WebHookTarget, MailTarget)


class AlertChannelRow(View):
    """A receiver of notifications, without its secrets."""

    id: str
    name: str
    kind: str
    """`webHook` or `email`."""
    address: str
    """Host of the web hook, or recipients."""
    min_severity: Severity
    """Less urgent alerts are not sent to it."""
    is_enabled: bool
    """Whether alerts are sent to it."""
    sent: int
    """Delivered notifications since the start of the console."""
    failed: int
    """Notifications that were not delivered after all attempts."""
    dropped: int
    """Notifications that did not fit into the queue."""
    waiting: int
    """Notifications that wait."""
    sent_ms: int | None
    """Time of the last delivery; null: none since the start."""
    failed_ms: int | None
    """Time of the last failed attempt; null: none since the start."""
    error: str
    """Its reason; empty for other roles than admin, as it may contain what a host answered."""
    has_authorization: bool
    """Whether a web hook sends the header Authorization."""
    host: str
    """Mail server; empty for other roles than admin."""
    port: int | None
    """Port of the mail server."""
    security: MailSecurity
    """Encryption of the connection to the mail server."""
    user: str
    """Account of the mail server; empty for other roles than admin."""
    has_password: bool
    """Whether a password of the mail server is stored."""
    sender: str
    """Address of the sender."""


class AlertChannelsView(View):
    """All receivers."""

    channels: list[AlertChannelRow]
    """The receivers, in the order in which they were created."""


class _ChannelForm(ChangeForm):
    name: str
    """Name for people."""
    min_severity: Severity = Severity.INFO
    """Less urgent alerts are not sent to it."""
    is_enabled: bool = True
    """Whether alerts are sent to it."""


class WebHookForm(_ChannelForm):
    """A web hook to create or replace."""

    url: str = ""
    """http or https URL. Empty keeps the stored one."""
    authorization: str = ""
    """Value of the header Authorization. Empty keeps the stored one of the same URL."""


class EmailForm(_ChannelForm):
    """Recipients of e-mail to create or replace."""

    recipients: str
    """Addresses, separated by commas."""
    sender: str
    """Address of the sender."""
    host: str
    """Mail server."""
    port: int = 587
    """Port of the mail server."""
    security: MailSecurity = MailSecurity.STARTTLS
    """Encryption of the connection."""
    user: str = ""
    """Account of the mail server; empty: no log-in."""
    password: str = ""
    """Its password. Empty keeps the stored one of the same server and user."""


def alert_channels(services: ConsoleServices, *, is_admin: bool) -> AlertChannelsView:
    """Return all receivers; mail servers and errors only for admins."""
    rows = [_row(services, channel) for channel in services.alerts.settings.channels]
    hidden = {"error": "", "host": "", "user": ""}
    return AlertChannelsView(channels=rows if is_admin else [row.model_copy(update=hidden) for row in rows])


def alert_channel(services: ConsoleServices, channel_id: str) -> AlertChannelRow:
    """Return a receiver."""
    return _row(services, find(services.alerts.settings.channels, "channel", channel_id))


def save_web_hook(services: ConsoleServices, form: WebHookForm, *, channel_id: str = "") -> ChangeResult:
    """Create a web hook, or replace the one with this id."""
    stored = _stored(services, channel_id, WebHookTarget)
    url, authorization = form.url, form.authorization
    if stored is not None:
        # The stored header must not reach another address that an attacker with a stolen session enters.
        is_same = form.url in ("", stored.url)
        url = form.url or stored.url
        authorization = form.authorization or (stored.authorization if is_same else "")
    return _save(services, channel_id, form, WebHookTarget(url=url, authorization=authorization))


def save_email(services: ConsoleServices, form: EmailForm, *, channel_id: str = "") -> ChangeResult:
    """Create recipients of e-mail, or replace those with this id."""
    stored = _stored(services, channel_id, MailTarget)
    password = form.password
    if stored is not None and not password and (stored.host, stored.user) == (form.host, form.user):
        password = stored.password
    recipients = tuple(address.strip() for address in form.recipients.split(",") if address.strip())
    target = MailTarget(
        host=form.host, port=form.port, sender=form.sender, recipients=recipients,
        security=form.security, user=form.user, password=password if form.user else "",
    )  # fmt: skip
    return _save(services, channel_id, form, target)


async def delete_channel(services: ConsoleServices, channel_id: str, form: DeletionForm) -> ChangeResult:
    """Delete a receiver."""
    channel = find(services.alerts.settings.channels, "channel", channel_id)
    check_confirmed(form, channel.name)
    await services.alerts.delete_channel(channel_id)
    return ChangeResult(notice=f"deleted channel {channel.name}")


async def send_test(services: ConsoleServices, channel_id: str) -> ChangeResult:
    """Send a test notification.

    Raises:
        ServerUnavailable: it was not accepted.
    """
    try:
        channel = await services.alerts.test_channel(channel_id)
    except DeliveryFailed as error:
        raise ServerUnavailable(f"The test notification was not accepted: {error}") from None
    return ChangeResult(notice=f"sent a test notification to {channel.name}")


def _stored(services: ConsoleServices, channel_id: str, kind: type[Target]) -> Target | None:
    if not channel_id:
        return None
    target = find(services.alerts.settings.channels, "channel", channel_id).target
    if not isinstance(target, kind):
        raise ConfigError("channel", channel_id, "it is of the other kind; delete it and create another one")
    return target


def _save(
    services: ConsoleServices, channel_id: str, form: _ChannelForm, target: WebHookTarget | MailTarget
) -> ChangeResult:
    channel = AlertChannel(
        id=channel_id or new_id(), name=form.name, target=target, min_severity=form.min_severity,
        is_enabled=form.is_enabled,
    )  # fmt: skip
    services.alerts.save_channel(channel)
    return ChangeResult(notice=f"{'changed' if channel_id else 'created'} channel {form.name}")


def _row(services: ConsoleServices, channel: AlertChannel) -> AlertChannelRow:
    target, status = channel.target, services.alerts.channel_status(channel.id)
    if isinstance(target, MailTarget):
        return AlertChannelRow.of(
            channel, status, target, kind="email", address=", ".join(target.recipients),
            has_authorization=False, has_password=bool(target.password),
        )  # fmt: skip
    return AlertChannelRow.of(
        channel, status, kind="webHook", address=masked_url(target.url), has_authorization=bool(target.authorization),
        host="", port=None, security=MailSecurity.STARTTLS, user="", has_password=False, sender="",
    )  # fmt: skip

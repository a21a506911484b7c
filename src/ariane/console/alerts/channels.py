"""Where notifications are sent: web hooks and e-mail. Only admins configure them; secrets never leave the server again."""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from ariane.console.alerts.alert_rules import NAME_CHARACTERS_MAX, Severity
from ariane.console.alerts.evaluation import AlertTransition
from ariane.console.security.request_checks import is_loopback_host
from ariane.errors import ConfigError

CHANNELS_MAX = 20
RECIPIENTS_MAX = 20
URL_CHARACTERS_MAX = 2_000
ALERTS_PER_MESSAGE_MAX = 100

# Other characters are allowed by RFC 5322 in quotes only, which no receiver of alerts needs.
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@([A-Za-z0-9._-]{1,190}|\[[A-Za-z0-9.:]{1,45}\])")
_PRINTABLE = re.compile(r"[ -~]*")  # ASCII: smtplib and HTTP headers encode nothing else


class MailSecurity(enum.StrEnum):
    """How the connection to a mail server is encrypted."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


class WebHookTarget(msgspec.Struct, frozen=True, rename="camel", kw_only=True, tag="webHook", tag_field="kind"):
    """A URL that receives JSON by POST.

    Attributes:
        url: Its path often contains a secret.
        authorization: Value of the header Authorization; empty: none.
    """

    url: str
    authorization: str = ""

    def __repr__(self) -> str:
        return f"WebHookTarget({masked_url(self.url)!r})"


class MailTarget(msgspec.Struct, frozen=True, rename="camel", kw_only=True, tag="email", tag_field="kind"):
    """Recipients of e-mail, and the server that forwards it.

    Attributes:
        host: Mail server.
        port: Its port: 587 for STARTTLS, 465 for TLS, 25 without encryption.
        security: Encryption of the connection.
        user: Account of the mail server; empty: no log-in.
        password: Its password.
        sender: Address of the sender.
        recipients: Addresses of the recipients.
    """

    host: str
    port: int
    sender: str
    recipients: tuple[str, ...]
    security: MailSecurity = MailSecurity.STARTTLS
    user: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"MailTarget({self.host!r}, {self.recipients!r})"


class AlertChannel(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A receiver of notifications.

    Attributes:
        id: Random text that identifies it.
        name: Name for people.
        target: Where it is.
        min_severity: Less urgent alerts are not sent to it.
        is_enabled: Whether alerts are sent to it.
    """

    id: str
    name: str
    target: WebHookTarget | MailTarget
    min_severity: Severity = Severity.INFO
    is_enabled: bool = True

    def wants(self, transition: AlertTransition) -> bool:
        """Return whether a transition is sent to this channel."""
        return self.is_enabled and transition.state.rule.severity.rank >= self.min_severity.rank


class Notification(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One message about alerts that began or ended.

    Attributes:
        cluster: Name servers of the cluster.
        transitions: The alerts, at most ALERTS_PER_MESSAGE_MAX.
        omitted: How many further ones there are.
        is_test: Whether it was sent by the test button.
    """

    cluster: str
    transitions: Sequence[AlertTransition]
    omitted: int = 0
    is_test: bool = False


class DeliveryFailed(Exception):
    """A notification was not accepted. `is_transient`: another attempt may succeed."""

    def __init__(self, reason: str, *, is_transient: bool) -> None:
        super().__init__(reason)
        self.is_transient = is_transient


def masked_url(url: str) -> str:
    """Return a URL without its path, query and user, which may be secret."""
    try:
        parts = urlsplit(url)
        authority = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "…"
    return (
        f"{parts.scheme}://{authority}/…" if parts.path.strip("/") or parts.query else f"{parts.scheme}://{authority}"
    )


def check_peer(address: str) -> None:
    """Check the address that a connection to a receiver leads to. Not the name: it may resolve to another one a moment later.

    Raises:
        DeliveryFailed: it is link-local, where clouds offer credentials of the machine, or no address of one machine.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None) or ip
    if mapped.is_link_local or mapped.is_multicast or mapped.is_unspecified:
        reason = f"{address} is a link-local or multicast address, to which no notifications are sent"
        raise DeliveryFailed(reason, is_transient=False)


def check_channel(channel: AlertChannel) -> None:
    """Check the values of a channel.

    Raises:
        ConfigError: a value is invalid. The message contains no secret.
    """
    if not channel.name or len(channel.name) > NAME_CHARACTERS_MAX:
        raise ConfigError("name", channel.name[:NAME_CHARACTERS_MAX], f"expected 1 to {NAME_CHARACTERS_MAX} characters")
    if isinstance(channel.target, WebHookTarget):
        _check_web_hook(channel.target)
    else:
        _check_mail(channel.target)


def _check_web_hook(target: WebHookTarget) -> None:
    expected = "expected http:// or https:// with a host, without user and password"
    try:
        parts = urlsplit(target.url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
        is_valid = is_valid and (parts.port is None or parts.port > 0) and _is_host_name(parts.hostname or "")
    except ValueError:
        is_valid = False
    # A line feed would begin another header of the request.
    if not is_valid or len(target.url) > URL_CHARACTERS_MAX or not re.fullmatch(r"[!-~]+", target.url):
        raise ConfigError("url", None, expected)
    if not _PRINTABLE.fullmatch(target.authorization) or len(target.authorization) > URL_CHARACTERS_MAX:
        raise ConfigError("authorization", None, "expected printable ASCII characters, for example Bearer TOKEN")
    if target.authorization and parts.scheme == "http" and not is_loopback_host(parts.hostname or ""):
        raise ConfigError("authorization", None, "expected a URL with https://: http:// would send it in clear text")


def _check_mail(target: MailTarget) -> None:
    if not re.fullmatch(r"[A-Za-z0-9.:_\[\]-]{1,253}", target.host) or not _is_host_name(target.host):
        raise ConfigError("host", target.host[:253], "expected the name or address of a mail server")
    if not 1 <= target.port <= 65_535:
        raise ConfigError("port", target.port, "expected 1 to 65535; usual are 587 (STARTTLS), 465 (TLS) and 25")
    if not 1 <= len(target.recipients) <= RECIPIENTS_MAX:
        raise ConfigError(
            "recipients", len(target.recipients), f"expected 1 to {RECIPIENTS_MAX} addresses separated by commas"
        )
    for key, address in (("sender", target.sender), *(("recipients", address) for address in target.recipients)):
        if not _ADDRESS.fullmatch(address):
            raise ConfigError(key, address[:254], "expected an address such as alerts@example.com")
    for key, text in (("user", target.user), ("password", target.password)):
        if not _PRINTABLE.fullmatch(text):
            raise ConfigError(key, None, "expected printable ASCII characters, which are all that mail servers accept")
    if target.user and target.security is MailSecurity.NONE:
        raise ConfigError(
            "security", target.security.value, "expected starttls or tls: the password would be sent in clear text"
        )


def _is_host_name(host: str) -> bool:
    """Return whether a host can be looked up: without empty or too long labels."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True

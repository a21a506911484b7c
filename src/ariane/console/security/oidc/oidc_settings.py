"""Settings of the provider: oidc.toml in the data directory. Read at the start of the console.

issuer = "https://id.example.com/realms/company"
client_id = "ariane-console"
client_secret_file = "/run/secrets/console"     # or client_secret_variable; neither: a public client
console_url = "https://console.example.com"
[roles]
admin = ["platform"]
viewer = ["*"]
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from ariane.console.security.request_checks import is_loopback_host
from ariane.console.security.roles import ConsoleRole
from ariane.errors import ConfigError

FILE_NAME = "oidc.toml"
CALLBACK_PATH = "/login/oidc/callback"
EVERYONE = "*"
SECRET_BYTES_MAX = 4_096


class OidcSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A provider, and what its accounts may do."""

    issuer: str
    """URL of the provider, as its tokens name it."""
    client_id: str
    """Name of the console at the provider."""
    console_url: str
    """URL of the console, as browsers reach it; `/login/oidc/callback` below it is registered at the provider."""
    client_secret_file: str = ""
    """File with the secret of the console at the provider."""
    client_secret_variable: str = ""
    """Environment variable with it."""
    name: str = "OpenID Connect"
    """Name of the provider on the log-in page."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    """Scopes that are requested."""
    name_claim: str = "preferred_username"
    """Claim that names an account; `sub` if the token does not have it."""
    roles_claim: str = "groups"
    """Claim with the groups or roles of an account; `.` leads into objects: `realm_access.roles`."""
    roles: dict[ConsoleRole, tuple[str, ...]]
    """Values of that claim for each role of the console; `*`: every account."""
    session_hours: float = 8.0
    """Longest time until an account has to log in again: its role is that at the log-in."""
    ca_file: str = ""
    """PEM file of the authorities of the provider; empty: those of this machine."""

    @property
    def redirect_uri(self) -> str:
        """URL to which the provider sends the browser."""
        return self.console_url.rstrip("/") + CALLBACK_PATH

    @property
    def generation(self) -> str:
        """Text that changes with the settings: sessions of earlier ones end."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:16]

    def role_of(self, values: Iterable[str]) -> ConsoleRole | None:
        """Return the highest role that an account with these values has; None if it has none."""
        present = {*values, EVERYONE}
        roles = [role for role in reversed(ConsoleRole) if present.intersection(self.roles.get(role, ()))]
        return roles[0] if roles else None

    def secret(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return the secret of the console at the provider; empty for a public client.

        Raises:
            ConfigError: its file or variable is missing or empty.
        """
        if self.client_secret_variable:
            return _present(environment.get(self.client_secret_variable, ""), "variable", self.client_secret_variable)
        if not self.client_secret_file:
            return ""
        try:
            with Path(self.client_secret_file).open(encoding="utf-8") as file:
                text = file.read(SECRET_BYTES_MAX)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError("client_secret_file", self.client_secret_file, f"cannot be read: {reason}") from None
        return _present(text.strip(), "file", self.client_secret_file)


def _present(secret: str, kind: str, name: str) -> str:
    if not secret:
        raise ConfigError(f"client_secret_{kind}", name, f"the {kind} is missing or empty; store the secret in it")
    return secret


def read_settings(data_dir: Path) -> OidcSettings | None:
    """Return the settings of the provider; None without a file.

    Raises:
        ConfigError: the file cannot be read, or a value is invalid.
    """
    path = data_dir / FILE_NAME
    try:
        settings = msgspec.toml.decode(path.read_bytes(), type=OidcSettings)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError("console", str(path), f"cannot read it: {error}; correct the file") from None
    for key, url in (("issuer", settings.issuer), ("console_url", settings.console_url)):
        check_url(key, url)
    if settings.client_secret_file and settings.client_secret_variable:
        raise ConfigError(
            "client_secret_file", settings.client_secret_file, "the secret is in a variable, too; keep one"
        )
    if not any(settings.roles.values()):
        raise ConfigError("roles", None, "no account has a role; add values of the claim, or '*' for every account")
    settings.secret()
    return settings


def check_url(key: str, url: str) -> None:
    """Check a URL that codes and tokens are sent to.

    Raises:
        ConfigError: it is not https; plain http is accepted on this machine only.
    """
    parts = urlsplit(url)
    if not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ConfigError(key, url, "expected a URL such as https://id.example.com")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback_host(parts.hostname)):
        raise ConfigError(key, url, "expected https: tokens would cross the network in plain text")

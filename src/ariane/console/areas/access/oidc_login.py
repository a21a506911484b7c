"""Log-in by OpenID Connect, with its audit entries."""

from __future__ import annotations

from typing import NamedTuple

from ariane.console.areas.access.login import record_login
from ariane.console.security.audit_log import AuditEntry
from ariane.console.security.oidc.login_attempt import LoginAttempt
from ariane.console.security.oidc.oidc_provider import (
    Claims,
    OidcProvider,
    ProviderUnavailable,
    TokenRefused,
    values_of,
)
from ariane.console.security.oidc.oidc_settings import CALLBACK_PATH
from ariane.console.services import ConsoleServices
from ariane.errors import NotFound

ACCOUNT_PREFIX = "oidc:"  # no account of the console has a colon
NAME_MAX = 59


class ProviderAnswer(NamedTuple):
    """Parameters of the callback. Attributes: code or error of the provider, and the issuer that it names."""

    code: str
    error: str
    issuer: str


def provider_of(services: ConsoleServices) -> OidcProvider:
    """Return the provider.

    Raises:
        NotFound: the console has none.
    """
    if services.oidc is None:
        raise NotFound("page", "/login/oidc")
    return services.oidc


async def finish_login(
    services: ConsoleServices, attempt: LoginAttempt | None, answer: ProviderAnswer, *, address: str, user_agent: str
) -> str:
    """Start the session of the account that the provider names, and return its token.

    Raises:
        ProviderUnavailable: the provider did not respond.
        TokenRefused: the log-in failed, or the account has no role.
    """
    name, provider = "", provider_of(services)
    try:
        if attempt is None:
            raise TokenRefused("it was not begun in this browser, or took longer than 10 minutes")
        if answer.error or not answer.code:
            raise TokenRefused(f"the provider answered: {(answer.error or 'no code')[:200]}")
        claims = await provider.claims(
            code=answer.code, verifier=attempt.verifier, nonce=attempt.nonce, issuer=answer.issuer
        )
        settings = provider.settings
        name = account_name(claims, settings.name_claim)
        role = settings.role_of(values_of(claims, settings.roles_claim))
        if role is None:
            raise TokenRefused(f"{name} has no role in this console: none of its {settings.roles_claim} has one")
    except (TokenRefused, ProviderUnavailable) as error:
        status = 401 if isinstance(error, TokenRefused) else 503
        detail = f"log-in of {name or 'an account'} by OpenID Connect: {error}"
        await record_login(services, AuditEntry(0, "", address, "GET", CALLBACK_PATH, "refused", status, detail=detail))
        raise
    token = services.sessions.create_external(
        name, role, generation=settings.generation, address=address, user_agent=user_agent
    )
    entry = AuditEntry(0, name, address, "GET", CALLBACK_PATH, "done", 303, role=role.value, detail="log-in")
    await record_login(services, entry)
    return token


def account_name(claims: Claims, name_claim: str) -> str:
    """Return the name of an account for people, limits and the audit log; it cannot be that of one of the console's own."""
    names = (*values_of(claims, name_claim), str(claims["sub"]))
    name = "".join(character for character in names[0] if character.isprintable())[:NAME_MAX].strip()
    return f"{ACCOUNT_PREFIX}{name or claims['sub']}"

"""Log-in page, and log-out."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from ariane.console.areas.access import login, oidc_login
from ariane.console.areas.access.login import LoginForm
from ariane.console.areas.access.oidc_login import ProviderAnswer
from ariane.console.security.accounts.authentication import LoginRefused
from ariane.console.security.accounts.identity import address_of, identity_of
from ariane.console.security.accounts.session_cookie import (
    DEVICE,
    LOGIN,
    SESSION,
    clear_cookie,
    cookie_token,
    set_cookie,
)
from ariane.console.security.oidc.login_attempt import begin_attempt, resume_attempt
from ariane.console.security.oidc.oidc_provider import ProviderUnavailable, TokenRefused
from ariane.console.security.request_checks import path_after_login
from ariane.console.services import ConsoleServices
from ariane.console.texts.translation import gettext
from ariane.console.web.dependencies import FromForm, Services
from ariane.console.web.rendering import render

log = logging.getLogger("ariane.console")
pages = APIRouter()

TEMPLATE = "access/login/login.html"


@pages.get("/login")
async def login_page(request: Request, services: Services, next: str = "") -> Response:
    """Return the log-in form, or continue if the reader is logged in."""
    target = path_after_login(next)
    if identity_of(request) is not None:
        return RedirectResponse(target, status_code=303)
    return _form(request, services, target)


def _form(
    request: Request,
    services: ConsoleServices,
    target: str,
    *,
    status: int = 200,
    name: str = "",
    notice: str = "",
    log_out_url: str = "",
) -> HTMLResponse:
    """Return the log-in form. `notice` says why the last log-in failed, `log_out_url` is that of the provider."""
    provider = "" if services.oidc is None else services.oidc.settings.name
    return render(
        request, TEMPLATE, status=status, next=target, name=name, notice_text=notice, provider=provider,
        has_accounts=bool(services.accounts.list()), log_out_url=log_out_url,
    )  # fmt: skip


@pages.get("/login/oidc")
async def begin_oidc_login(request: Request, services: Services, next: str = "") -> Response:
    """Send the browser to the provider's log-in page."""
    provider, attempt = oidc_login.provider_of(services), begin_attempt(next)
    try:
        url = await provider.authorization_url(state=attempt.state, nonce=attempt.nonce, challenge=attempt.challenge)
    except ProviderUnavailable as error:
        return _provider_fault(request, services, attempt.next, error)
    response = RedirectResponse(url, status_code=303)
    set_cookie(request, response, services.settings, LOGIN, attempt.cookie)
    return response


@pages.get("/login/oidc/callback")
async def finish_oidc_login(
    request: Request, services: Services, code: str = "", state: str = "", error: str = "", iss: str = ""
) -> Response:
    """Log in the account that the provider names, and continue with the page that the reader wanted."""
    attempt = resume_attempt(cookie_token(request, services.settings, LOGIN), state)
    response: Response
    try:
        token = await oidc_login.finish_login(
            services, attempt, ProviderAnswer(code, error, iss), address=address_of(request),
            user_agent=request.headers.get("user-agent", ""),
        )  # fmt: skip
    except ProviderUnavailable as fault:
        response = _provider_fault(request, services, attempt.next if attempt else "", fault)
    except TokenRefused as refusal:
        notice = gettext("The log-in failed: %(reason)s.", reason=str(refusal))
        response = _form(request, services, attempt.next if attempt else "", status=401, notice=notice)
    else:
        assert attempt is not None
        response = RedirectResponse(attempt.next, status_code=303)
        set_cookie(request, response, services.settings, SESSION, token)
    clear_cookie(request, response, services.settings, LOGIN)
    return response


def _provider_fault(
    request: Request, services: ConsoleServices, target: str, error: ProviderUnavailable
) -> HTMLResponse:
    log.warning("OpenID Connect: %s", error)  # with addresses, which are not for readers without an account
    notice = gettext("The log-in provider does not respond; its fault is in the console's log. Try again later.")
    return _form(request, services, target, status=503, notice=notice)


@pages.post("/login")
async def log_in(request: Request, services: Services, form: FromForm[LoginForm]) -> Response:
    """Log in and continue with the page that the reader wanted."""
    target, address = path_after_login(form.next), address_of(request)
    try:
        token = await login.log_in(
            services, form, address=address, user_agent=request.headers.get("user-agent", ""),
            device_token=cookie_token(request, services.settings, DEVICE),
        )  # fmt: skip
    except LoginRefused as error:
        notice = gettext("Name or password is wrong.")
        if error.wait_seconds:
            notice = gettext("Too many failed log-ins: try again in %(seconds)s s.", seconds=error.wait_seconds)
        status = 429 if error.wait_seconds else 401
        response: Response = _form(request, services, target, status=status, name=form.name[:64], notice=notice)
        if error.wait_seconds:
            response.headers["Retry-After"] = str(error.wait_seconds)
        return response
    redirect = RedirectResponse(target, status_code=303)
    set_cookie(request, redirect, services.settings, SESSION, token)
    set_cookie(request, redirect, services.settings, DEVICE, services.authenticator.devices.issue(form.name.strip()))
    return redirect


@pages.post("/logout")
async def log_out(request: Request, services: Services) -> Response:
    """End the session of this browser."""
    identity = identity_of(request)
    if identity is not None and identity.session_id:
        services.sessions.revoke(identity.session_id, account=identity.name)
    # The policy of the pages forbids that a form leads to another host: the page that follows has the link.
    is_external = identity is not None and not identity.has_password
    response = RedirectResponse("/login/ended" if is_external else "/login", status_code=303)
    clear_cookie(request, response, services.settings, SESSION)
    return response


@pages.get("/login/ended")
async def ended_page(request: Request, services: Services) -> Response:
    """Return the log-in form after a log-out, with the link that ends the session with the provider, too."""
    try:
        url = await oidc_login.provider_of(services).log_out_url()
    except ProviderUnavailable as error:
        return _provider_fault(request, services, "", error)
    return _form(request, services, "", log_out_url=url)

"""Log-in page, and log-out."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from ariane.console.areas.access import login
from ariane.console.areas.access.login import LoginForm
from ariane.console.security.accounts.authentication import LoginRefused
from ariane.console.security.accounts.identity import address_of, identity_of
from ariane.console.security.accounts.session_cookie import (
    DEVICE,
    SESSION,
    clear_session_cookie,
    cookie_token,
    set_cookie,
)
from ariane.console.security.request_checks import path_after_login
from ariane.console.web.dependencies import FromForm, Services
from ariane.console.web.rendering import render

pages = APIRouter()

TEMPLATE = "login/login.html"


@pages.get("/login")
async def login_page(request: Request, next: str = "") -> Response:
    """Return the log-in form, or continue if the reader is logged in."""
    target = path_after_login(next)
    if identity_of(request) is not None:
        return RedirectResponse(target, status_code=303)
    return render(request, TEMPLATE, next=target, name="", is_refused=False, wait_seconds=0)


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
        response = render(
            request, TEMPLATE, status=429 if error.wait_seconds else 401, next=target, name=form.name[:64],
            is_refused=True, wait_seconds=error.wait_seconds,
        )  # fmt: skip
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
    response = RedirectResponse("/login", status_code=303)
    clear_session_cookie(request, response, services.settings)
    return response

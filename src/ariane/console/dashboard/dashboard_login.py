"""/login of Apache's dashboard, with the accounts and sessions of the console."""

from __future__ import annotations

import json

from fastapi import Request
from fastapi.responses import JSONResponse

from ariane.console.areas.access import login
from ariane.console.areas.access.login import LoginForm
from ariane.console.dashboard.formats.envelope import DashboardRouter, succeeded
from ariane.console.dashboard.formats.json_shapes import Json
from ariane.console.dashboard.formats.request_parameters import Parameters, RequestParameters
from ariane.console.security.accounts.identity import address_of, identity_of
from ariane.console.security.accounts.session_cookie import (
    DEVICE,
    SESSION,
    clear_cookie,
    cookie_token,
    set_cookie,
)
from ariane.console.security.roles import ConsoleRole
from ariane.console.web.dependencies import Services
from ariane.errors import UsageError

routes = DashboardRouter("/login")

ADMIN, ORDINARY = 1, 0  # roles as 1.0.0 numbers them
CONTEXT_PATH = "/"


@routes.get("/check.query")
async def check(request: Request, services: Services) -> Json:
    """Return whether a log-in is needed and done."""
    identity = identity_of(request)
    return {
        "loginRequired": services.authenticator.is_login_needed,
        "logined": identity is not None and identity.is_account,
    }


@routes.post("/login.do")
async def log_in(request: Request, services: Services, parameters: Parameters) -> JSONResponse:
    """Start a session. Name and password are in the form, or in a JSON object as the newest versions send them."""
    values = await _with_json(request, parameters)
    form = LoginForm(name=values.text("username"), password=values.text("password"))
    agent = request.headers.get("user-agent", "")
    token = await login.log_in(
        services, form, address=address_of(request), user_agent=agent, path=request.scope["path"],
        device_token=cookie_token(request, services.settings, DEVICE),
    )  # fmt: skip
    account = services.accounts.find(form.name.strip())
    assert account is not None
    role = ADMIN if account.role is ConsoleRole.ADMIN else ORDINARY
    response = succeeded({"loginUserName": account.name, "loginUserRole": role, "contextPath": CONTEXT_PATH})
    set_cookie(request, response, services.settings, SESSION, token)
    set_cookie(request, response, services.settings, DEVICE, services.authenticator.devices.issue(account.name))
    return response


@routes.post("/logout.do")
async def log_out(request: Request, services: Services) -> JSONResponse:
    """End the session."""
    identity = identity_of(request)
    if identity is not None and identity.session_id:
        services.sessions.revoke(identity.session_id, account=identity.name)
    response = succeeded(CONTEXT_PATH)
    clear_cookie(request, response, services.settings, SESSION)
    return response


async def _with_json(request: Request, parameters: Parameters) -> RequestParameters:
    if not request.headers.get("content-type", "").startswith("application/json"):
        return parameters
    try:
        body = json.loads(await request.body())
    except ValueError:
        raise UsageError("body", None, "expected a JSON object with username and password") from None
    if not isinstance(body, dict):
        raise UsageError("body", None, "expected a JSON object with username and password")
    return RequestParameters({name: str(value) for name, value in body.items()})

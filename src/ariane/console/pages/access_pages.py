"""Pages of access: accounts and sessions of the console, one's own account, and access control of the brokers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from starlette.exceptions import HTTPException

from ariane.console.areas.access import console_users
from ariane.console.areas.access.console_users import NewUserForm, OwnPasswordForm, UserPasswordForm, UserRoleForm
from ariane.console.areas.brokers import broker_acl
from ariane.console.areas.brokers.broker_acl import AclAccountForm, AclDeletionForm, GlobalAddressesForm
from ariane.console.areas.confirmation import DeletionForm
from ariane.console.security.accounts.identity import identity_of
from ariane.console.security.accounts.roles import ConsoleRole
from ariane.console.security.accounts.session_cookie import set_session_cookie
from ariane.console.web.dependencies import ListParameters, Services, sender
from ariane.console.web.rendering import changed, render

router = APIRouter()

ACCESS, ACL, OWN = "/access", "/access/acl", "/account"


# --- accounts and sessions of the console ---


@router.get(ACCESS)
async def access_page(request: Request, services: Services, query: ListParameters) -> Response:
    """Return all accounts and sessions."""
    view = console_users.access(services, query, identity=identity_of(request))
    return render(request, "access/access.html", view=view, roles=list(ConsoleRole))


@router.post("/access/users")
async def add_user(request: Request, services: Services, form: Annotated[NewUserForm, Form()]) -> Response:
    """Create an account."""
    return changed(request, (await console_users.add_user(services, form)).notice, location=ACCESS)


@router.get("/access/users/{name}")
async def user_page(request: Request, services: Services, name: str, query: ListParameters) -> Response:
    """Return one account with the forms that change it."""
    view = console_users.access(services, query, identity=identity_of(request))
    user = next((user for user in view.users if user.name == name), None)
    if user is None:
        raise HTTPException(404, f"No console account has the name {name}.")
    return render(request, "access/user.html", user=user, roles=list(ConsoleRole))


@router.post("/access/users/{name}/role")
async def set_role(request: Request, services: Services, name: str, form: Annotated[UserRoleForm, Form()]) -> Response:
    """Change a role."""
    return changed(request, console_users.set_role(services, name, form).notice, location=ACCESS)


@router.post("/access/users/{name}/password")
async def set_password(
    request: Request, services: Services, name: str, form: Annotated[UserPasswordForm, Form()]
) -> Response:
    """Replace a password."""
    return changed(request, (await console_users.set_password(services, name, form)).notice, location=ACCESS)


@router.post("/access/users/{name}/delete")
async def remove_user(
    request: Request, services: Services, name: str, form: Annotated[DeletionForm, Form()]
) -> Response:
    """Remove an account."""
    return changed(request, console_users.remove_user(services, name, form).notice, location=ACCESS)


@router.post("/access/sessions/{session_id}/end")
async def revoke_session(request: Request, services: Services, session_id: str) -> Response:
    """End a session of any account."""
    return changed(request, console_users.revoke_session(services, session_id).notice)


# --- one's own account ---


@router.get(OWN)
async def own_account_page(request: Request, services: Services) -> Response:
    """Return one's own account."""
    return render(request, "access/account.html", view=console_users.own_account(services, sender(request)))


@router.post("/account/password")
async def set_own_password(request: Request, services: Services, form: Annotated[OwnPasswordForm, Form()]) -> Response:
    """Replace one's own password, and continue with a new session."""
    identity = sender(request)
    result = await console_users.set_own_password(services, form, identity=identity)
    response = changed(request, result.notice, location=OWN)
    if (account := services.accounts.find(identity.name)) is not None:
        user_agent = request.headers.get("user-agent", "")
        token = services.sessions.create(account, address=identity.address, user_agent=user_agent)
        set_session_cookie(request, response, services.settings, token)
    return response


@router.post("/account/sessions/{session_id}/end")
async def revoke_own_session(request: Request, services: Services, session_id: str) -> Response:
    """End one of one's own sessions."""
    result = console_users.revoke_session(services, session_id, account=sender(request).name)
    return changed(request, result.notice, location=OWN)


@router.post("/account/sessions/end-others")
async def revoke_other_sessions(request: Request, services: Services) -> Response:
    """End all of one's own sessions except this one."""
    result = console_users.revoke_other_sessions(services, identity=sender(request))
    return changed(request, result.notice, location=OWN)


# --- access control of the brokers ---


@router.get(ACL)
async def acl_page(request: Request, services: Services, query: ListParameters) -> Response:
    """Return access control of all brokers."""
    return render(request, "access/acl.html", view=await broker_acl.broker_acl(services, query))


@router.get("/access/acl/account")
async def acl_account_page(request: Request, services: Services, key: str = "") -> Response:
    """Return the form of an account; without a key that of a new one."""
    account = await broker_acl.acl_account(services, key) if key else None
    return render(request, "access/acl_account.html", account=account, permissions=broker_acl.PERMISSIONS)


@router.post("/access/acl/accounts")
async def save_acl_account(request: Request, services: Services, form: Annotated[AclAccountForm, Form()]) -> Response:
    """Create or change an account."""
    result = await broker_acl.save_account(services, form)
    return changed(request, result.notice, location=None if form.is_dry_run else ACL)


@router.post("/access/acl/accounts/delete")
async def delete_acl_account(
    request: Request, services: Services, form: Annotated[AclDeletionForm, Form()]
) -> Response:
    """Delete an account."""
    result = await broker_acl.delete_account(services, form)
    return changed(request, result.notice, location=None if form.is_dry_run else ACL)


@router.post("/access/acl/addresses")
async def set_global_addresses(
    request: Request, services: Services, form: Annotated[GlobalAddressesForm, Form()]
) -> Response:
    """Replace the addresses that need no account."""
    result = await broker_acl.set_global_addresses(services, form)
    return changed(request, result.notice, location=None if form.is_dry_run else ACL)

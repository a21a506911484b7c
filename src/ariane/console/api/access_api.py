"""REST of access: accounts and sessions of the console, and access control of the brokers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from ariane.console.areas.access import console_users
from ariane.console.areas.access.console_users import (
    AccessView,
    NewUserForm,
    OwnAccountView,
    UserPasswordForm,
    UserRoleForm,
)
from ariane.console.areas.brokers import broker_acl
from ariane.console.areas.brokers.broker_acl import AclAccountForm, AclDeletionForm, AclView, GlobalAddressesForm
from ariane.console.areas.confirmation import DeletionForm
from ariane.console.security.accounts.identity import identity_of
from ariane.console.web.dependencies import ListParameters, Services, sender
from ariane.console.web.view_model import ChangeResult

router = APIRouter(tags=["access"])


@router.get("/access")
async def get_access(request: Request, services: Services, query: ListParameters) -> AccessView:
    """Return all accounts and sessions of the console."""
    return console_users.access(services, query, identity=identity_of(request))


@router.post("/access/users")
async def add_user(services: Services, form: NewUserForm) -> ChangeResult:
    """Create an account of the console."""
    return await console_users.add_user(services, form)


@router.put("/access/users/{name}/role")
async def set_user_role(services: Services, name: str, form: UserRoleForm) -> ChangeResult:
    """Change a role; all sessions of the account end."""
    return console_users.set_role(services, name, form)


@router.put("/access/users/{name}/password")
async def set_user_password(services: Services, name: str, form: UserPasswordForm) -> ChangeResult:
    """Replace a password; all sessions of the account end."""
    return await console_users.set_password(services, name, form)


@router.delete("/access/users/{name}")
async def remove_user(services: Services, name: str, form: Annotated[DeletionForm, Query()]) -> ChangeResult:
    """Remove an account; `confirm` must be its name."""
    return console_users.remove_user(services, name, form)


@router.delete("/access/sessions/{session_id}")
async def revoke_session(services: Services, session_id: str) -> ChangeResult:
    """End a session of any account."""
    return console_users.revoke_session(services, session_id)


@router.get("/account")
async def get_own_account(request: Request, services: Services) -> OwnAccountView:
    """Return the account of the sender, with its sessions."""
    return console_users.own_account(services, sender(request))


@router.delete("/account/sessions/{session_id}")
async def revoke_own_session(request: Request, services: Services, session_id: str) -> ChangeResult:
    """End a session of the sender's account."""
    return console_users.revoke_session(services, session_id, account=sender(request).name)


@router.get("/access/acl")
async def get_broker_acl(services: Services, query: ListParameters) -> AclView:
    """Return access control of all brokers, without secret keys."""
    return await broker_acl.broker_acl(services, query)


@router.put("/access/acl/accounts")
async def save_acl_account(services: Services, form: AclAccountForm) -> ChangeResult:
    """Create an account of the brokers, or replace its settings."""
    return await broker_acl.save_account(services, form)


@router.delete("/access/acl/accounts")
async def delete_acl_account(services: Services, form: Annotated[AclDeletionForm, Query()]) -> ChangeResult:
    """Delete an account of the brokers; `confirm` must be its access key."""
    return await broker_acl.delete_account(services, form)


@router.put("/access/acl/addresses")
async def set_global_addresses(services: Services, form: GlobalAddressesForm) -> ChangeResult:
    """Replace the addresses from which requests need no account."""
    return await broker_acl.set_global_addresses(services, form)

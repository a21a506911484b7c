"""Access: pages and REST of accounts and sessions of the console, one's own account, and accounts and users of the brokers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.exceptions import HTTPException

from ariane.access.policies import ACTIONS, DECISIONS, POLICY_TYPES
from ariane.access.users import USER_STATES, USER_TYPES
from ariane.console.areas.access import broker_users, console_users
from ariane.console.areas.brokers import broker_acl
from ariane.console.areas.brokers.broker_acl import AclAccountForm, AclDeletionForm, AclView, GlobalAddressesForm
from ariane.console.areas.confirmation import DeletionForm
from ariane.console.security.accounts.identity import identity_of
from ariane.console.security.accounts.session_cookie import SESSION, set_cookie
from ariane.console.security.roles import ConsoleRole
from ariane.console.web.dependencies import FromForm, FromQuery, ListParameters, Services, sender
from ariane.console.web.page_router import PageRouter
from ariane.console.web.rendering import changed, render
from ariane.console.web.view_model import ChangeResult

pages = PageRouter()
api = APIRouter(tags=["access"])

ACCESS, ACL, USERS, OWN = "/access", "/access/acl", "/access/acl/users", "/account"
USER = USERS.removesuffix("s") + "?name={username}"


@api.get("/access")
async def get_access(request: Request, services: Services, query: ListParameters) -> console_users.AccessView:
    """Return all accounts and sessions of the console."""
    return console_users.access(services, query, identity=identity_of(request))


@pages.form("/access/users", ACCESS)
@api.post("/access/users")
async def add_user(services: Services, form: console_users.NewUserForm) -> ChangeResult:
    """Create an account of the console."""
    return await console_users.add_user(services, form)


@pages.form("/access/users/{name}/role", ACCESS)
@api.put("/access/users/{name}/role")
async def set_user_role(services: Services, name: str, form: console_users.UserRoleForm) -> ChangeResult:
    """Change a role; all sessions of the account end."""
    return console_users.set_role(services, name, form)


@pages.form("/access/users/{name}/password", ACCESS)
@api.put("/access/users/{name}/password")
async def set_user_password(services: Services, name: str, form: console_users.UserPasswordForm) -> ChangeResult:
    """Replace a password; all sessions of the account end."""
    return await console_users.set_password(services, name, form)


@pages.form("/access/users/{name}/delete", ACCESS)
@api.delete("/access/users/{name}")
async def remove_user(services: Services, name: str, form: FromQuery[DeletionForm]) -> ChangeResult:
    """Remove an account; `confirm` must be its name."""
    return console_users.remove_user(services, name, form)


@pages.form("/access/sessions/{session_id}/end")
@api.delete("/access/sessions/{session_id}")
async def revoke_session(services: Services, session_id: str) -> ChangeResult:
    """End a session of any account."""
    return console_users.revoke_session(services, session_id)


@pages.page(OWN, "access/account.html")
@api.get("/account")
async def get_own_account(request: Request, services: Services) -> console_users.OwnAccountView:
    """Return the account of the sender, with its sessions."""
    return console_users.own_account(services, sender(request))


@pages.form("/account/sessions/{session_id}/end", OWN)
@api.delete("/account/sessions/{session_id}")
async def revoke_own_session(request: Request, services: Services, session_id: str) -> ChangeResult:
    """End a session of the sender's account."""
    return console_users.revoke_session(services, session_id, account=sender(request).name)


@pages.page(ACL, "access/acl.html")
@api.get("/access/acl")
async def get_broker_acl(services: Services, query: ListParameters) -> AclView:
    """Return access control of all brokers, without secret keys."""
    return await broker_acl.broker_acl(services, query)


@pages.form("/access/acl/accounts", ACL, plan="")
@api.put("/access/acl/accounts")
async def save_acl_account(services: Services, form: AclAccountForm) -> ChangeResult:
    """Create an account of the brokers, or replace its settings."""
    return await broker_acl.save_account(services, form)


@pages.form("/access/acl/accounts/delete", ACL, plan="")
@api.delete("/access/acl/accounts")
async def delete_acl_account(services: Services, form: FromQuery[AclDeletionForm]) -> ChangeResult:
    """Delete an account of the brokers; `confirm` must be its access key."""
    return await broker_acl.delete_account(services, form)


@pages.form("/access/acl/addresses", ACL, plan="")
@api.put("/access/acl/addresses")
async def set_global_addresses(services: Services, form: GlobalAddressesForm) -> ChangeResult:
    """Replace the addresses from which requests need no account."""
    return await broker_acl.set_global_addresses(services, form)


@pages.page(USERS, "access/broker_users.html")
@api.get("/access/acl/users")
async def get_broker_users(services: Services, query: ListParameters) -> broker_users.BrokerUsersView:
    """Return users of ACL 2.0 with their policies on all brokers, without passwords."""
    return await broker_users.broker_users(services, query)


@pages.form("/access/acl/users", USER, plan="")
@api.put("/access/acl/users")
async def save_broker_user(services: Services, form: broker_users.BrokerUserForm) -> ChangeResult:
    """Create a user of the brokers, or change the settings that are given."""
    return await broker_users.save_user(services, form)


@pages.form("/access/acl/users/delete", USERS, plan="")
@api.delete("/access/acl/users")
async def delete_broker_user(services: Services, form: FromQuery[broker_users.BrokerUserDeletionForm]) -> ChangeResult:
    """Delete a user of the brokers with its policies; `confirm` must be its name."""
    return await broker_users.delete_user(services, form)


@pages.form("/access/acl/policies", USER, plan="")
@api.put("/access/acl/policies")
async def save_broker_policy(services: Services, form: broker_users.PolicyForm) -> ChangeResult:
    """Add an entry to the policies of a user, or replace that of the same type and resource."""
    return await broker_users.save_policy(services, form)


@pages.form("/access/acl/policies/delete", USER, plan="")
@api.delete("/access/acl/policies")
async def delete_broker_policy(services: Services, form: FromQuery[broker_users.PolicyDeletionForm]) -> ChangeResult:
    """Delete an entry from the policies of a user; `confirm` must be its resource."""
    return await broker_users.delete_policy(services, form)


# --- other pages, and forms ---


@pages.get(ACCESS)
async def access_page(request: Request, services: Services, query: ListParameters) -> Response:
    """Return all accounts and sessions."""
    view = console_users.access(services, query, identity=identity_of(request))
    return render(request, "access/access.html", view=view, roles=list(ConsoleRole))


@pages.get("/access/users/{name}")
async def user_page(request: Request, services: Services, name: str, query: ListParameters) -> Response:
    """Return one account with the forms that change it."""
    view = console_users.access(services, query, identity=identity_of(request))
    user = next((user for user in view.users if user.name == name), None)
    if user is None:
        raise HTTPException(404, f"No console account has the name {name}.")
    return render(request, "access/user.html", user=user, roles=list(ConsoleRole))


@pages.post("/account/password")
async def set_own_password(
    request: Request, services: Services, form: FromForm[console_users.OwnPasswordForm]
) -> Response:
    """Replace one's own password, and continue with a new session."""
    identity = sender(request)
    result = await console_users.set_own_password(services, form, identity=identity)
    response = changed(request, result, location=OWN)
    if (account := services.accounts.find(identity.name)) is not None:
        user_agent = request.headers.get("user-agent", "")
        token = services.sessions.create(account, address=identity.address, user_agent=user_agent)
        set_cookie(request, response, services.settings, SESSION, token)
    return response


@pages.post("/account/sessions/end-others")
async def revoke_other_sessions(request: Request, services: Services) -> Response:
    """End all of one's own sessions except this one."""
    return changed(request, console_users.revoke_other_sessions(services, identity=sender(request)), location=OWN)


@pages.get("/access/acl/account")
async def acl_account_page(request: Request, services: Services, key: str = "") -> Response:
    """Return the form of an account; without a key that of a new one."""
    account = await broker_acl.acl_account(services, key) if key else None
    return render(request, "access/acl_account.html", account=account, permissions=broker_acl.PERMISSIONS)


@pages.get("/access/acl/user")
async def broker_user_page(request: Request, services: Services, name: str = "") -> Response:
    """Return a user with its policies; without a name the form of a new one."""
    user = await broker_users.broker_user(services, name) if name else None
    return render(
        request, "access/broker_user.html", user=user, types=_options(USER_TYPES), states=_options(USER_STATES)
    )


@pages.get("/access/acl/policy")
async def broker_policy_page(
    request: Request,
    services: Services,
    name: str,
    policy_type: Annotated[str, Query(alias="type")] = "Custom",
    resource: str = "",
) -> Response:
    """Return the form of an entry of the policies of a user; without a resource that of a new one."""
    policy = await broker_users.broker_policy(services, name, policy_type, resource) if resource else None
    return render(
        request, "access/broker_policy.html", username=name, policy=policy, actions=list(ACTIONS),
        types=_options(POLICY_TYPES), decisions=_options(DECISIONS),
    )  # fmt: skip


def _options(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the options of a select field whose values are shown as they are."""
    return [(name, name) for name in names]

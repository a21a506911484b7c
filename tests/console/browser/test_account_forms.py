"""Every form of accounts, users and sessions is used, in this order: those of the console, and those of brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from console_program import ConsoleProgram

pytest.importorskip("playwright", reason="needs playwright: pip install playwright")
pytest.importorskip("fastapi", reason="needs fastapi: pip install 'ariane[console]'")

from crawler import RouteTable
from form_use import APPEARS_S, DRY_RUN, FormUse, use_form
from page_faults import OpenContext
from playwright.sync_api import BrowserContext, Page, expect

from ariane.console.security.accounts.accounts import ConsoleAccounts
from ariane.console.security.roles import ConsoleRole
from ariane.testing import LocalCluster

PASSWORD, NEW_PASSWORD = "a long enough password", "another long enough password"
ACL_FILE = (
    "globalWhiteRemoteAddresses: []\naccounts:\n- {accessKey: root-account, secretKey: root-secret, admin: true}\n"
)
VICTOR = {"name": "victor", "role": "viewer", "password": PASSWORD}
SHOP = {"accessKey": "shop-account", "secretKey": "shop-secret", "topicPerms": "orders=PUB"}
CAROL = {"username": "carol", "password": PASSWORD}
PREFIX = "/access/acl"

USES = (
    # --- accounts of the console ---
    FormUse("/access", "/access/users", "victor", VICTOR),
    FormUse("/access/users/victor", "/access/users/{name}/role", "victor", {"role": "operator"}),
    FormUse("/access/users/victor", "/access/users/{name}/password", "victor", {"password": NEW_PASSWORD}),
    FormUse("/access/users/victor", "/access/users/{name}/delete", "victor", {"confirm": "victor"}),
    # --- accounts of brokers ---
    FormUse(f"{PREFIX}/account", f"{PREFIX}/accounts", "would save", SHOP, DRY_RUN),
    FormUse(f"{PREFIX}/account", f"{PREFIX}/accounts", "shop-account", SHOP),
    FormUse(f"{PREFIX}/account?key=shop-account", f"{PREFIX}/accounts", "shop-account", {"isAdmin": "true"}),
    FormUse(
        f"{PREFIX}/account?key=shop-account", f"{PREFIX}/accounts/delete", "shop-account", {"confirm": "shop-account"}
    ),
    FormUse(PREFIX, f"{PREFIX}/addresses", "allowed", {"addresses": "10.0.0.*"}),
    # --- users of brokers ---
    FormUse(f"{PREFIX}/user", f"{PREFIX}/users", "would save user", CAROL, DRY_RUN),
    FormUse(f"{PREFIX}/user", f"{PREFIX}/users", "saved user carol", CAROL),
    FormUse(f"{PREFIX}/user?name=carol", f"{PREFIX}/users", "saved user carol", {"userStatus": "disable"}),
    FormUse(f"{PREFIX}/policy?name=carol", f"{PREFIX}/policies", "saved the policy", {"resource": "Topic:o*", "actions": True}),
    FormUse(f"{PREFIX}/policy?name=carol&resource=Topic:o*", f"{PREFIX}/policies/delete", "deleted", {"confirm": "Topic:o*"}),
    FormUse(f"{PREFIX}/user?name=carol", f"{PREFIX}/users/delete", "deleted user carol", {"confirm": "carol"}),
    # --- sessions, and one's own account ---
    FormUse("/access", "/access/sessions/{session_id}/end", "ended"),
    FormUse("/account", "/account/sessions/{session_id}/end", "ended"),
    FormUse("/account", "/account/sessions/end-others", "ended"),
    FormUse("/account", "/account/password", "password", {
        "current": PASSWORD, "password": NEW_PASSWORD, "repeated": NEW_PASSWORD,
    }),
)  # fmt: skip


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProgram]:
    """A console with the account alice, of a broker with access control and users."""
    home = tmp_path_factory.mktemp("secured")
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(ACL_FILE)
    ConsoleAccounts(home / "console" / "data").add("alice", ConsoleRole.ADMIN, PASSWORD)
    options = ("--access-key", "root-account", "--secret-key", "root-secret")
    with (
        LocalCluster(home, acl_enable=True, authentication_enabled=True, rocketmq_home=str(home)) as servers,
        ConsoleProgram(servers.namesrv, home / "console", *options) as console,
    ):
        yield console


def log_in(context: BrowserContext) -> Page:
    page = context.new_page()
    page.goto("/login")
    page.locator("[name='name']").fill("alice")
    page.locator("[name='password']").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.locator("#navigation")).to_be_visible(timeout=APPEARS_S * 1_000)
    return page


@pytest.mark.long(
    "tests/console/test_alert_pages.py::test_rules_are_created_changed_and_deleted",
    "tests/console/test_access_pages.py::test_admins_change_accounts_and_revoke_sessions",
)
def test_the_forms_of_accounts_are_used(secured: ConsoleProgram, open_context: OpenContext) -> None:
    context, _ = open_context(secured.url)
    page, table = log_in(context), RouteTable()
    for use in USES:
        if "session" in use.form:
            log_in(open_context(secured.url)[0]).close()  # a session to end
        use_form(page, table, use)
    used = {use.form for use in USES}
    changes = {path for _, path in table.changes() if path.startswith(("/access/", "/account/"))}
    assert changes - used == set()

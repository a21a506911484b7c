"""Log-in by OpenID Connect: the rules of the protocol, with a provider of its own keys in memory."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from fastapi.testclient import TestClient

from ariane.console.app import create_app
from ariane.console.security.accounts.accounts import ConsoleAccounts
from ariane.console.security.oidc import oidc_provider
from ariane.console.security.oidc.login_attempt import begin_attempt, resume_attempt
from ariane.console.security.oidc.oidc_provider import OidcProvider, ProviderUnavailable, TokenRefused, values_of
from ariane.console.security.oidc.oidc_settings import OidcSettings, read_settings
from ariane.console.security.roles import ConsoleRole
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings
from ariane.errors import ConfigError
from ariane.testing.clock import FakeClock

ISSUER = "https://id.example.com/realm"
BASE = "http://127.0.0.1:8080"
SECRET = "planted-client-secret"
FILE = f"""
issuer = "{ISSUER}"
client_id = "console"
client_secret_variable = "OIDC_TEST_SECRET"
console_url = "{BASE}"
name = "Company"
[roles]
admin = ["platform"]
viewer = ["staff"]
"""


class Provider:
    """A provider: `claims` are those of the next token, `key_id` names the key that signs it."""

    def __init__(self) -> None:
        self.keys = {"k1": rsa.generate_private_key(public_exponent=65537, key_size=2048)}
        self.key_id = "k1"
        self.algorithm = "RS256"
        self.claims: dict[str, Any] = {}
        self.removed: tuple[str, ...] = ()
        self.document: dict[str, Any] = {}
        self.requests: list[httpx.Request] = []
        self.is_down = False
        self.userinfo: dict[str, Any] = {}
        self.transport = httpx.MockTransport(self.answer)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.is_down:
            raise httpx.ConnectError("refused")
        match request.url.path.rpartition("/")[2]:
            case "openid-configuration":
                urls = {name: f"{ISSUER}/{name}" for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")}
                return httpx.Response(200, json={"issuer": ISSUER, **urls, **self.document})
            case "jwks_uri":
                keys = [
                    {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())), "kid": name, "use": "sig"}
                    for name, key in self.keys.items()
                ]
                return httpx.Response(200, json={"keys": keys})
            case "token_endpoint":
                return httpx.Response(200, json={"id_token": self.token(), "access_token": "access"})
            case "userinfo":
                return httpx.Response(200, json=self.userinfo)
        raise AssertionError(request.url)

    def token(self) -> str:
        now_s = int(time.time())
        claims = {"iss": ISSUER, "aud": "console", "sub": "17", "iat": now_s, "exp": now_s + 300, "groups": ["staff"],
                  "preferred_username": "alice", "nonce": "n", **self.claims}  # fmt: skip
        for name in self.removed:
            del claims[name]
        key: Any = self.keys[self.key_id] if self.algorithm == "RS256" else "a secret of at least thirty-two bytes"
        return jwt.encode(claims, key if self.algorithm != "none" else "", self.algorithm, {"kid": self.key_id})


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    monkeypatch.setenv("OIDC_TEST_SECRET", SECRET)
    return Provider()


def settings(**changes: Any) -> OidcSettings:
    values = {"issuer": ISSUER, "client_id": "console", "client_secret_variable": "OIDC_TEST_SECRET",
              "console_url": BASE, "roles": {ConsoleRole.VIEWER: ("staff",)}}  # fmt: skip
    return OidcSettings(**{**values, **changes})


def claims_of(provider: Provider, clock: FakeClock | None = None, issuer: str = "", **changes: Any) -> Any:
    async def run() -> Any:
        client = OidcProvider(settings(**changes), clock=clock or FakeClock(), transport=provider.transport)
        try:
            return await client.claims(code="c", verifier="v", nonce="n", issuer=issuer)
        finally:
            await client.close()

    return asyncio.run(run())


def test_a_valid_token_is_accepted_and_the_code_is_exchanged_with_its_verifier(provider: Provider) -> None:
    assert claims_of(provider)["sub"] == "17"
    (exchange,) = [request for request in provider.requests if request.method == "POST"]
    form = {name: values[0] for name, values in parse_qs(exchange.content.decode()).items()}
    assert (form["code"], form["code_verifier"], form["redirect_uri"]) == ("c", "v", f"{BASE}/login/oidc/callback")
    assert base64.b64decode(exchange.headers["authorization"].split()[1]).decode() == f"console:{SECRET}"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p.claims.update(iss="https://evil.example"), "issuer"),
        (lambda p: p.claims.update(aud="other"), "Audience"),
        (lambda p: p.claims.update(aud=["console", "other"]), "another client"),
        (lambda p: p.claims.update(azp="other"), "another client"),
        (lambda p: p.claims.update(exp=int(time.time()) - 3600), "expired"),
        (lambda p: p.claims.update(nbf=int(time.time()) + 3600), "not yet valid"),
        (lambda p: p.claims.update(nonce="other"), "nonce"),
        (lambda p: setattr(p, "removed", ("exp",)), "exp"),
        (lambda p: setattr(p, "removed", ("nonce",)), "nonce"),
        (lambda p: setattr(p, "algorithm", "HS256"), "signed with HS256"),
        (lambda p: setattr(p, "algorithm", "none"), "signed with none"),
    ],
)
def test_an_invalid_token_is_refused(provider: Provider, change: Callable[[Provider], None], reason: str) -> None:
    change(provider)
    with pytest.raises(TokenRefused, match=reason):
        claims_of(provider)


def test_a_token_of_a_foreign_key_is_refused(provider: Provider) -> None:
    published = dict(provider.keys)
    provider.keys["k1"] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    token = provider.token()
    provider.keys = published
    provider.token = lambda: token  # type: ignore[method-assign]
    with pytest.raises(TokenRefused, match="Signature"):
        claims_of(provider)


def test_rotated_keys_are_read_again_but_not_for_every_token(provider: Provider) -> None:
    clock = FakeClock()

    async def run() -> None:
        client = OidcProvider(settings(), clock=clock, transport=provider.transport)

        async def log_in() -> Any:
            return await client.claims(code="c", verifier="v", nonce="n")

        await log_in()
        provider.keys = {"k2": rsa.generate_private_key(public_exponent=65537, key_size=2048)}
        provider.key_id = "k2"
        with pytest.raises(TokenRefused, match="does not publish"):
            await log_in()  # the keys were read a moment ago
        clock.advance(oidc_provider.KEYS_S)
        await log_in()
        reads = sum(request.url.path.endswith("jwks_uri") for request in provider.requests)
        assert reads == 2
        await client.close()

    asyncio.run(run())


def test_the_provider_has_to_be_the_issuer_and_its_endpoints_encrypted(provider: Provider) -> None:
    for document, reason in (
        ({"issuer": "https://id.example.com"}, "is not the issuer"),
        ({"token_endpoint": "http://id.example.com/token"}, "expected https"),
    ):
        provider.document = document
        with pytest.raises(ProviderUnavailable, match=reason):
            claims_of(provider)
    provider.document = {"authorization_response_iss_parameter_supported": True}
    with pytest.raises(TokenRefused, match="from the issuer ''"):
        claims_of(provider)
    with pytest.raises(TokenRefused, match=r"issuer 'https://evil\.example"):
        claims_of(provider, issuer="https://evil.example")
    assert claims_of(provider, issuer=ISSUER)


def test_roles_come_from_the_userinfo_of_the_same_account_if_the_token_has_none(provider: Provider) -> None:
    provider.document = {"userinfo_endpoint": f"{ISSUER}/userinfo"}
    provider.removed = ("groups",)
    provider.userinfo = {"sub": "17", "groups": ["platform"], "preferred_username": "mallory"}
    claims = claims_of(provider)
    assert (claims["groups"], claims["preferred_username"]) == (["platform"], "alice")
    provider.userinfo = {"sub": "18", "groups": ["platform"]}
    with pytest.raises(TokenRefused, match="does not describe"):
        claims_of(provider)


def test_claims_lead_into_objects() -> None:
    claims = {"realm_access": {"roles": ["a", 1, "b"]}, "https://x.example/groups": "c", "n": 5}
    assert values_of(claims, "realm_access.roles") == ("a", "b")
    assert values_of(claims, "https://x.example/groups") == ("c",)
    assert values_of(claims, "n") == values_of(claims, "realm_access.none.deeper") == ()


def test_the_highest_role_wins() -> None:
    roles = {ConsoleRole.ADMIN: ("platform",), ConsoleRole.OPERATOR: ("ops",), ConsoleRole.VIEWER: ("*",)}
    config = settings(roles=roles)
    assert config.role_of(["ops", "platform"]) is ConsoleRole.ADMIN
    assert config.role_of([]) is ConsoleRole.VIEWER
    assert settings().role_of(["*"]) is None, "a claim is no pattern"


def test_the_cookie_binds_the_log_in_to_the_browser() -> None:
    attempt = begin_attempt("//evil.example")
    assert attempt.next == "/"
    digest = base64.urlsafe_b64encode(hashlib.sha256(attempt.verifier.encode()).digest()).decode().rstrip("=")
    assert attempt.challenge == digest
    assert resume_attempt(attempt.cookie, attempt.state) == attempt
    for cookie, state in ((attempt.cookie, "other"), (attempt.cookie, ""), ("", ""), ("x!", attempt.state)):
        assert resume_attempt(cookie, state) is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("https://id", "http://id"), "expected https"),
        (('client_id = "console"\n', ""), "client_id"),
        (('viewer = ["staff"]', 'owner = ["staff"]'), "owner"),
        (('name = "Company"', 'nane = "Company"'), "nane"),
        (("OIDC_TEST_SECRET", "OIDC_TEST_ABSENT"), "missing or empty"),
    ],
)
def test_an_invalid_file_stops_the_start(tmp_path: Path, change: Any, fault: str, provider: Provider) -> None:
    (tmp_path / "oidc.toml").write_text(FILE.replace(*change))
    with pytest.raises(ConfigError, match=fault):
        read_settings(tmp_path)


# --- in the application ---


class Site:
    """A console with the provider."""

    def __init__(self, provider: Provider, home: Path, stack: ExitStack) -> None:
        (home / "oidc.toml").write_text(FILE)
        self.provider, self.home = provider, home
        app = create_app(open_services(ConsoleSettings(namesrv="127.0.0.1:1", data_dir=home)))
        self.client = stack.enter_context(TestClient(app, base_url=BASE, follow_redirects=False))
        self.services: Any = app.state.services
        self.services.oidc = OidcProvider(read_settings(home) or settings(), transport=provider.transport)

    def begin(self, target: str = "") -> dict[str, str]:
        """Begin a log-in, and return the parameters of the provider's log-in page."""
        response = self.client.get("/login/oidc", params={"next": target})
        assert response.status_code == 303
        return {name: values[0] for name, values in parse_qs(urlsplit(response.headers["location"]).query).items()}

    def finish(self, query: dict[str, str], **changes: str) -> httpx.Response:
        self.provider.claims.setdefault("nonce", query["nonce"])
        response = self.client.get("/login/oidc/callback", params={"code": "c", "state": query["state"], **changes})
        self.provider.claims.pop("nonce")
        return response

    def audit(self, name: str = "audit.jsonl") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.home / name).read_text().splitlines()]


@pytest.fixture
def site(provider: Provider, tmp_path: Path) -> Any:
    with ExitStack() as stack:
        yield Site(provider, tmp_path, stack)


def test_an_account_of_the_provider_logs_in_with_its_role_and_out(site: Site) -> None:
    assert site.client.get("/topics").headers["location"] == "/login?next=%2Ftopics"
    assert "Log in with Company" in site.client.get("/login").text
    query = site.begin("/topics?q=a")
    assert (query["response_type"], query["code_challenge_method"], query["client_id"]) == ("code", "S256", "console")
    response = site.finish(query)
    assert (response.status_code, unquote(response.headers["location"])) == (303, "/topics?q=a")
    account = site.client.get("/api/v1/account").json()
    assert (account["name"], account["role"]) == ("oidc:alice", "viewer")
    assert site.client.get("/api/v1/access").status_code == 403
    assert "New password" not in site.client.get("/account").text
    entry = site.audit()[-1]
    assert (entry["account"], entry["detail"], entry["outcome"]) == ("oidc:alice", "log-in", "done")
    token = site.client.cookies["ariane-session-8080"]
    site.provider.document = {"end_session_endpoint": f"{ISSUER}/end"}
    site.services.oidc._metadata = {}
    identity = site.services.authenticator.from_session(token, "a")
    ended = site.client.post("/logout", headers={"X-CSRF-Token": identity.csrf_token, "Origin": BASE})
    assert ended.headers["location"] == "/login/ended"
    assert f"{ISSUER}/end?client_id=console" in site.client.get("/login/ended").text
    assert site.services.authenticator.from_session(token, "a") is None


def test_a_callback_without_its_cookie_or_with_another_state_is_refused(site: Site) -> None:
    query = site.begin()
    assert site.finish(query, state="other").status_code == 401
    # A refused answer ends the log-in: the code cannot be tried again.
    assert site.finish(query).status_code == 401
    query = site.begin()
    site.client.cookies.clear()
    assert site.finish(query).status_code == 401
    assert not [request for request in site.provider.requests if request.method == "POST"]
    assert "not begun in this browser" in site.audit("audit_refused.jsonl")[-1]["detail"]


def test_an_account_without_a_role_is_refused_and_named(site: Site) -> None:
    site.provider.claims["groups"] = ["others"]
    response = site.finish(site.begin())
    assert response.status_code == 401
    assert "oidc:alice has no role" in response.text
    assert "ariane-session-8080" not in site.client.cookies


def test_a_provider_that_does_not_respond_has_a_clear_page_and_own_accounts_still_work(site: Site) -> None:
    query = site.begin()
    site.provider.is_down = True
    response = site.finish(query)
    assert (response.status_code, "does not respond" in response.text) == (503, True)
    site.services.oidc._metadata = {}
    assert site.client.get("/login/oidc").status_code == 503
    ConsoleAccounts(site.home).add("bob", ConsoleRole.ADMIN, "correct horse battery")
    form = {"name": "bob", "password": "correct horse battery", "next": ""}
    assert site.client.post("/login", data=form, headers={"Origin": BASE}).status_code == 303


def test_the_error_of_the_provider_is_shown_as_text(site: Site) -> None:
    response = site.finish(site.begin(), code="", error="<script>alert(1)</script>")
    assert response.status_code == 401
    assert "&lt;script&gt;" in response.text and "<script>alert" not in response.text


def test_sessions_end_after_their_time_and_with_changed_settings(site: Site) -> None:
    site.finish(site.begin())
    token = site.client.cookies["ariane-session-8080"]
    sessions = site.services.sessions
    assert sessions.authenticate(token, "a") is not None
    saved = sessions._external
    sessions._external = saved._replace(age_max_ms=-1)
    assert sessions.authenticate(token, "a") is None
    sessions._external = saved
    site.finish(site.begin())
    sessions._external = saved._replace(generation="other")
    assert sessions.authenticate(site.client.cookies["ariane-session-8080"], "a") is None


def test_an_account_of_the_provider_is_none_of_the_console(site: Site) -> None:
    ConsoleAccounts(site.home).add("alice", ConsoleRole.ADMIN, "correct horse battery")
    site.finish(site.begin())
    assert site.client.get("/api/v1/account").json()["role"] == "viewer"


def test_the_secret_is_in_no_file_and_no_page(site: Site) -> None:
    site.finish(site.begin())
    assert SECRET not in site.client.get("/login").text
    assert SECRET not in repr(site.services.oidc.settings)
    for path in site.home.iterdir():
        assert SECRET not in path.read_text()

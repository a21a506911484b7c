"""Requests to the provider, and the verification of its tokens.

discovery document ─→ endpoints           refreshed after METADATA_S
key set            ─→ keys by id          refreshed for a token with an unknown key, at most every KEYS_S
code               ─→ ID token ─→ signature, issuer, audience, expiry, nonce ─→ claims
"""

from __future__ import annotations

import asyncio
import hmac
import json
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import jwt

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.console.security.oidc.oidc_settings import OidcSettings, check_url
from ariane.errors import ArianeError, ConfigError

TIMEOUT_S = 5.0  # of one request to the provider
ANSWER_BYTES_MAX = 1024 * 1024
METADATA_S = 3_600.0
KEYS_S = 30.0  # tokens with invented key ids must not make the console flood the provider
LEEWAY_S = 60  # difference of the clocks
REQUESTS_AT_ONCE = 8  # anybody may call the callback
# Never `none`, nor HMAC: its key would be the client's secret, or a public key as bytes.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
REQUIRED_CLAIMS = ("iss", "sub", "aud", "exp", "iat")
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")

Claims = Mapping[str, Any]


class ProviderUnavailable(ArianeError):
    """The provider did not respond, or not as one."""


class TokenRefused(ArianeError):
    """The provider refused the log-in, or what it sent does not prove who logs in."""


class OidcProvider:
    """The provider of a console.

    Args:
        settings: Its URL, and the console's account there.
    """

    def __init__(
        self,
        settings: OidcSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.settings = settings
        self._secret = settings.secret()
        self._clock = clock
        self._slots = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self._metadata: dict[str, Any] = {}  # the discovery document; empty until it is first needed
        self._metadata_s = float("-inf")  # monotonic time of the document
        self._keys: dict[str | None, jwt.PyJWK] = {}  # by id
        self._keys_s = float("-inf")  # monotonic time of the keys
        self._client = httpx.AsyncClient(
            transport=transport, verify=_context(settings), timeout=TIMEOUT_S, follow_redirects=False, trust_env=False
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def authorization_url(self, *, state: str, nonce: str, challenge: str) -> str:
        """Return the URL of the provider's log-in page.

        Raises:
            ProviderUnavailable: the discovery document cannot be read.
        """
        metadata = await self._fetch_metadata()
        query = {
            "response_type": "code", "client_id": self.settings.client_id, "redirect_uri": self.settings.redirect_uri,
            "scope": " ".join(self.settings.scopes), "state": state, "nonce": nonce, "code_challenge": challenge,
            "code_challenge_method": "S256",
        }  # fmt: skip
        endpoint = str(metadata["authorization_endpoint"])
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    async def log_out_url(self) -> str:
        """Return the URL at which the browser ends its session with the provider; empty if there is none.

        Raises:
            ProviderUnavailable: the discovery document cannot be read.
        """
        endpoint = str((await self._fetch_metadata()).get("end_session_endpoint", ""))
        if not endpoint.startswith("http"):
            return ""
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode({'client_id': self.settings.client_id})}"

    async def claims(self, *, code: str, verifier: str, nonce: str, issuer: str = "") -> Claims:
        """Return the verified claims of the account that a code was issued for.

        Args:
            issuer: Issuer that the answer names (RFC 9207); empty: none.

        Raises:
            ProviderUnavailable: the provider did not respond.
            TokenRefused: it refused the code, or its token is invalid.
        """
        metadata = await self._fetch_metadata()
        needs_issuer = metadata.get("authorization_response_iss_parameter_supported") is True
        if (issuer or needs_issuer) and issuer != self.settings.issuer:
            raise TokenRefused(f"the answer is from the issuer {issuer!r}, expected {self.settings.issuer}")
        tokens = await self._exchange(metadata, code, verifier)
        claims = await self._verify(str(tokens.get("id_token", "")), nonce)
        if values_of(claims, self.settings.roles_claim) or "userinfo_endpoint" not in metadata:
            return claims
        return {**await self._userinfo(metadata, tokens, claims), **claims}

    # --- requests ---

    async def _exchange(self, metadata: Claims, code: str, verifier: str) -> Claims:
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": self.settings.redirect_uri,
            "client_id": self.settings.client_id, "code_verifier": verifier,
        }  # fmt: skip
        credentials: httpx.BasicAuth | None = None
        methods = metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if self._secret and "client_secret_basic" in methods:
            credentials = httpx.BasicAuth(quote(self.settings.client_id, safe=""), quote(self._secret, safe=""))
        elif self._secret:
            form["client_secret"] = self._secret
        status, answer = await self._request("POST", str(metadata["token_endpoint"]), form=form, auth=credentials)
        if status != httpx.codes.OK:
            error = answer.get("error_description") or answer.get("error") or f"status {status}"
            raise TokenRefused(f"the provider refused the code: {str(error)[:200]}")
        return answer

    async def _userinfo(self, metadata: Claims, tokens: Claims, claims: Claims) -> Claims:
        headers = {"Authorization": f"Bearer {tokens.get('access_token', '')}"}
        status, answer = await self._request("GET", str(metadata["userinfo_endpoint"]), headers=headers)
        # Another account's information would give this one its roles.
        if status != httpx.codes.OK or answer.get("sub") != claims["sub"]:
            raise TokenRefused(f"the provider does not describe this account (status {status})")
        return answer

    async def _fetch_metadata(self) -> dict[str, Any]:
        now_s = self._clock.monotonic()
        if self._metadata and now_s - self._metadata_s < METADATA_S:
            return self._metadata
        issuer = self.settings.issuer
        status, document = await self._request("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if status != httpx.codes.OK or document.get("issuer") != issuer:
            actual = document.get("issuer", f"status {status}")
            raise ProviderUnavailable(f"{issuer} is not the issuer of its discovery document ({actual})")
        for name in (*ENDPOINTS, *({"userinfo_endpoint"} & document.keys())):
            try:
                check_url(name, str(document.get(name, "")).partition("?")[0])
            except ConfigError as error:
                raise ProviderUnavailable(f"discovery document of {issuer}: {error}") from None
        self._metadata, self._metadata_s = document, now_s
        return document

    async def _request(
        self,
        method: str,
        url: str,
        *,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        auth: httpx.BasicAuth | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Return status and JSON object of an answer; an empty object for an error of another form."""
        try:
            async with (
                asyncio.timeout(2 * TIMEOUT_S),
                self._slots,
                self._client.stream(method, url, data=form, headers=headers, auth=auth) as response,
            ):
                body = b""
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > ANSWER_BYTES_MAX:
                        raise ProviderUnavailable(f"the answer of {url} has more than {ANSWER_BYTES_MAX} bytes")
        except (httpx.HTTPError, TimeoutError) as error:
            raise ProviderUnavailable(f"{url} does not respond: {error or type(error).__name__}") from None
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            return response.status_code, answer
        if response.status_code == httpx.codes.OK or response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise ProviderUnavailable(f"{url} did not respond with JSON (status {response.status_code})")
        return response.status_code, {}

    # --- tokens ---

    async def _verify(self, token: str, nonce: str) -> Claims:
        try:
            header = jwt.get_unverified_header(token)
            algorithm = str(header.get("alg"))
            if algorithm not in ALGORITHMS:
                raise TokenRefused(
                    f"the token is signed with {algorithm[:20]}, expected one of {', '.join(ALGORITHMS)}"
                )
            key = await self._key(header.get("kid"))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self.settings.client_id,
                issuer=self.settings.issuer,
                leeway=LEEWAY_S,
                options={"require": list(REQUIRED_CLAIMS)},
            )
        except jwt.PyJWTError as error:
            raise TokenRefused(f"the token is invalid: {error}") from None
        party = claims.get("azp", self.settings.client_id)
        is_shared = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if party != self.settings.client_id or (is_shared and "azp" not in claims):
            raise TokenRefused("the token was issued for another client")
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise TokenRefused("the token belongs to another log-in (nonce)")
        return claims

    async def _key(self, key_id: str | None) -> jwt.PyJWK:
        now_s = self._clock.monotonic()
        if key_id not in self._keys and now_s - self._keys_s >= KEYS_S:
            self._keys_s = now_s
            status, document = await self._request("GET", str((await self._fetch_metadata())["jwks_uri"]))
            if status != httpx.codes.OK:
                self._keys_s = float("-inf")
                raise ProviderUnavailable(f"the keys of {self.settings.issuer} cannot be read (status {status})")
            self._keys = _signing_keys(document)
        key = self._keys.get(key_id)
        if key is None and key_id is None and len(self._keys) == 1:
            (key,) = self._keys.values()
        if key is None:
            raise TokenRefused("the token is signed with a key that the provider does not publish")
        return key


def _signing_keys(document: Claims) -> dict[str | None, jwt.PyJWK]:
    keys: dict[str | None, jwt.PyJWK] = {}
    entries = document.get("keys")
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or entry.get("kty") == "oct":
            continue
        try:
            keys[entry.get("kid")] = jwt.PyJWK(entry)
        except jwt.PyJWTError:
            continue  # of an algorithm that is not supported: a token that it signed is refused
    return keys


def values_of(claims: Claims, path: str) -> Sequence[str]:
    """Return the texts of a claim: a list, or one text; `.` leads into objects, unless a claim has the whole name."""
    value: Any = claims.get(path)
    if value is None:
        value = claims
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _context(settings: OidcSettings) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=settings.ca_file or None)
    except OSError as error:
        raise ConfigError("ca_file", settings.ca_file, f"cannot be used: {error}; expected a PEM file") from None

"""Lets a request pass if its sender may do it, and writes the audit entry of every unsafe one (ASGI middleware).

    host ─→ identity ─→ role of the path ─→ origin and CSRF token ─→ application ─→ audit entry ─→ response

Unsafe responses start only when their entry is on the disk.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from http import HTTPStatus
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ariane.console.limits.access import FULL_ACCESS, Access, with_access
from ariane.console.security import request_checks
from ariane.console.security.accounts.authentication import LoginRefused
from ariane.console.security.accounts.identity import STATE_KEY, Identity, address_of, identity_of
from ariane.console.security.accounts.session_cookie import SESSION, cookie_token
from ariane.console.security.audit_log import AuditEntry
from ariane.console.security.audit_notes import AuditNotes, begin_notes
from ariane.console.security.dashboard_paths import is_dashboard_path
from ariane.console.security.permissions import LOGIN_PATH, Requirement, is_unsafe, requirement
from ariane.console.security.request_body import CSRF_HEADER, body_max, bounded, take_form_token, too_large
from ariane.console.web import errors
from ariane.console.web.dependencies import services_of
from ariane.console.web.rendering import is_htmx

log = logging.getLogger("ariane.console")

OUTDATED_PAGE = "The page is outdated: reload it and try again."
NEEDS_ORIGIN = "A change with a session needs the header Origin or X-CSRF-Token; Basic authentication needs neither."

_FORM_TYPE = "application/x-www-form-urlencoded"


class AccessMiddleware:
    """Authenticates and authorizes requests.

    Args:
        app: The application; `app.state.services` has accounts, sessions and the audit log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # the console has none
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await self._handle(Request(scope, receive), send)

    async def _handle(self, request: Request, send: Send) -> None:
        needed = requirement(request.method, request.scope["path"])
        try:
            await self._identify(request)
            receive = await self._check(request, needed)
        except HTTPException as error:
            await self._refuse(request, needed, error, send)
            return
        with with_access(_access_of(request)):
            if needed.is_audited:
                await self._run_audited(request, receive, send)
            else:
                await self._app(request.scope, receive, send)

    # --- checks ---

    async def _identify(self, request: Request) -> None:
        """Store the identity of the sender in the request.

        Raises:
            HTTPException: the request names another host, or its password is wrong.
        """
        services, headers, address = services_of(request), request.headers, address_of(request)
        # A page whose name resolves to this machine has no session: with a log-in, only proxies send other names.
        if not services.authenticator.is_login_needed and not request_checks.is_own_host(
            headers, services.settings.host
        ):
            hint = "This console only answers at the loopback names of its machine, for example localhost."
            raise HTTPException(HTTPStatus.MISDIRECTED_REQUEST, hint)
        authenticator = services.authenticator
        identity = authenticator.from_session(cookie_token(request, services.settings, SESSION), address)
        if identity is None and errors.is_api(request) and "authorization" in headers:
            try:
                identity = await authenticator.from_basic(headers["authorization"], address)
            except LoginRefused as error:
                await self._record(request, None, HTTPStatus.UNAUTHORIZED, f"Basic authentication: {error}")
                raise _refusal(request, error) from None
        request.scope.setdefault("state", {})[STATE_KEY] = identity or authenticator.local(headers, address)

    async def _check(self, request: Request, needed: Requirement) -> Receive:
        """Check that the sender may do this, and return the `receive` of the application.

        Raises:
            HTTPException: it may not.
        """
        identity = identity_of(request)
        limit = body_max(request.scope["path"], is_identified=identity is not None)
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:  # the server checks its form; `bounded` counts other bodies
            raise too_large(limit)
        receive = bounded(request.receive, limit)
        if needed.role is not None and identity is None:
            headers = _challenge(request.headers) if errors.is_api(request) else None
            raise HTTPException(HTTPStatus.UNAUTHORIZED, "Log in first.", headers)
        if needed.role is not None and identity is not None and not identity.role.includes(needed.role):
            message = f"This needs the role {needed.role}; {identity.name} is {identity.role}."
            raise HTTPException(HTTPStatus.FORBIDDEN, message)
        if needed.role is not None and needed.closed and _access_of(request).is_limited:
            message = f"The account is limited to some topics and groups, and {needed.closed}."
            raise HTTPException(HTTPStatus.FORBIDDEN, message)
        if not is_unsafe(request.method, request.scope["path"]):
            return receive
        if not request_checks.is_same_origin(request.headers):
            raise HTTPException(HTTPStatus.FORBIDDEN, "Another web page caused this request; nothing was changed.")
        if services_of(request).settings.is_read_only and needed.is_audited and not needed.is_local:
            raise HTTPException(HTTPStatus.FORBIDDEN, "This console is read-only.")
        if is_dashboard_path(request.scope["path"]) and not needed.is_audited:
            return receive  # a log-in, or a search that is sent by POST
        return await self._check_token(request, identity, receive)

    async def _check_token(self, request: Request, identity: Identity | None, receive: Receive) -> Receive:
        path, token = request.scope["path"], request.headers.get(CSRF_HEADER, "")
        is_dashboard = is_dashboard_path(path)
        if not is_dashboard and request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM_TYPE:
            field, receive = await take_form_token(receive)
            token = token or field
        is_script = identity is None or not (identity.session_id or request_checks.is_from_browser(request.headers))
        # Pages cannot make a browser send a password by themselves, so Basic authentication has no token. Neither has
        # the log-in, which the check of the origin protects. Local scripts have no session whose token they could send.
        expected = identity.csrf_token if identity else ""
        if is_script or not expected or path == LOGIN_PATH:
            return receive
        # Scripts that log in to Apache's dashboard have no page with a token. The origin shows that no other page sends the
        # cookie; without it, a link could: browsers send no origin with GET, and Sec-Fetch-Site not to all sites.
        if is_dashboard and request_checks.is_from_own_page(request.headers):
            return receive
        if not hmac.compare_digest(token.encode(), expected.encode()):
            raise HTTPException(HTTPStatus.FORBIDDEN, NEEDS_ORIGIN if is_dashboard else OUTDATED_PAGE)
        return receive

    # --- answers ---

    async def _refuse(self, request: Request, needed: Requirement, error: HTTPException, send: Send) -> None:
        if needed.is_audited:
            await self._record(request, identity_of(request), error.status_code, str(error.detail))
        response = _login_redirect(request) if error.status_code == HTTPStatus.UNAUTHORIZED else None
        if response is None:
            response = errors.answer(request, str(error.detail), error.status_code)
            response.headers.update(error.headers or {})
        await response(request.scope, request.receive, send)

    async def _run_audited(self, request: Request, receive: Receive, send: Send) -> None:
        notes, is_started = begin_notes(), False

        async def send_audited(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start" and not is_started:
                is_started = True
                await self._record(request, identity_of(request), message["status"], notes.text(), notes)
            await send(message)

        try:
            await self._app(request.scope, receive, send_audited)
        except Exception as error:
            if not is_started:  # the server's own answer to an unexpected error follows, outside of this middleware
                detail = f"{notes.text()}; unexpected error {type(error).__name__}".lstrip("; ")
                await self._record(request, identity_of(request), HTTPStatus.INTERNAL_SERVER_ERROR, detail, notes)
            raise

    async def _record(
        self, request: Request, identity: Identity | None, status: int, detail: str, notes: AuditNotes | None = None
    ) -> None:
        services = services_of(request)
        entry = AuditEntry(
            time_ms=services.clock.now_ms(),
            account=identity.name if identity else "",
            address=address_of(request),
            method=request.method,
            path=request.scope["path"],
            outcome=_outcome(status, notes),
            status=status,
            role=identity.role.value if identity else "",
            target=" ".join(str(value) for value in request.scope.get("path_params", {}).values()),
            detail=detail,
        )
        try:
            await asyncio.to_thread(services.audit.record, entry)
        except (OSError, ValueError):
            # The change is done: an error in its place would make people repeat it.
            log.exception("Cannot write the audit entry %s", entry)


def _access_of(request: Request) -> Access:
    """Return what the sender of a request may see."""
    identity = identity_of(request)
    if identity is None:
        return FULL_ACCESS  # what needs no log-in shows nothing of the cluster
    return services_of(request).access_rules.access_of(identity.name, identity.role)


def _outcome(status: int, notes: AuditNotes | None) -> str:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS):
        return "refused"
    if status >= HTTPStatus.BAD_REQUEST or (notes is not None and notes.is_failed):
        return "failed"
    return "dry run" if notes is not None and notes.is_dry_run else "done"


def _refusal(request: Request, error: LoginRefused) -> HTTPException:
    if error.wait_seconds:
        headers = {"Retry-After": str(error.wait_seconds)}
        return HTTPException(HTTPStatus.TOO_MANY_REQUESTS, str(error), headers=headers)
    return HTTPException(HTTPStatus.UNAUTHORIZED, str(error), headers=_challenge(request.headers))


def _challenge(headers: Headers) -> dict[str, str]:
    """Return the header that asks scripts for a password. Browsers would open a dialog of their own."""
    is_browser = request_checks.is_from_browser(headers) or "sec-fetch-mode" in headers
    return {} if is_browser else {"WWW-Authenticate": 'Basic realm="Ariane console", charset="UTF-8"'}


def _login_redirect(request: Request) -> Response | None:
    """Return the way to the log-in, back to the page that the reader wanted; None for the API."""
    if errors.is_api(request):
        return None
    if is_htmx(request):
        target = request_checks.page_path(request.headers.get("hx-current-url"))
        # htmx would swap the log-in page into a part of the current page.
        headers = {"HX-Redirect": _login_path(target)}
        return Response("", HTTPStatus.UNAUTHORIZED, headers)
    if request.method not in request_checks.SAFE_METHODS:
        return RedirectResponse("/login", HTTPStatus.SEE_OTHER)
    target = request.scope.get("raw_path", b"").decode("latin-1")  # still encoded, as the browser sent it
    if query := request.scope.get("query_string", b"").decode("latin-1"):
        target += f"?{query}"
    return RedirectResponse(_login_path(target), HTTPStatus.SEE_OTHER)


def _login_path(target: str) -> str:
    path = request_checks.path_after_login(target)
    return "/login" if path == request_checks.HOME else f"/login?next={quote(path, safe='')}"

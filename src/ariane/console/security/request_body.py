"""Bodies of requests: complete before anything is done, bounded, and the CSRF token of a form taken from its fields."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import unquote_to_bytes

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CSRF_FIELD = "csrf_token"
CSRF_HEADER = "x-csrf-token"

ANONYMOUS_BODY_MAX = 64 * 1024  # a log-in
BODY_MAX = 1024 * 1024  # the largest: 1,000 dead letters of a batch
# A message of 4 MiB (RocketMQ's limit); a form may encode each of its bytes by three.
MESSAGE_BODY_MAX = 16 * 1024 * 1024
FIELDS_MAX = 2_000  # of a form
_MESSAGE_PATHS = ("/topics/", "/api/v1/topics/", "/topic/")  # where messages are sent


class CompleteBodyMiddleware:
    """Receives a body, or its first ANONYMOUS_BODY_MAX bytes, before the application begins.

    A request that is half sent costs a hundredth of one that is answered, and nothing is answered to a client that is gone.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        messages, size, is_complete = [], 0, False
        while not is_complete and size <= ANONYMOUS_BODY_MAX:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            messages.append(message)
            size += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
        await self._app(scope, _replay(messages, receive), send)


def body_max(path: str, *, is_identified: bool) -> int:
    """Return how many bytes the body of a request may have."""
    if not is_identified:
        return ANONYMOUS_BODY_MAX
    return MESSAGE_BODY_MAX if path.startswith(_MESSAGE_PATHS) else BODY_MAX


def too_large(limit: int) -> HTTPException:
    """Return the error for a body above its limit."""
    return HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The request exceeds {limit:,} bytes.")


def bounded(receive: Receive, limit: int) -> Receive:
    """Return `receive`, which fails with status 413 as soon as more than `limit` bytes have arrived."""
    received = 0

    async def receive_bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise too_large(limit)
        return message

    return receive_bounded


async def take_form_token(receive: Receive) -> tuple[str, Receive]:
    """Read a URL-encoded form; return its CSRF token, and a `receive` with the other fields.

    The field is removed because the models of forms refuse fields that they do not define.

    Raises:
        HTTPException: the form has too many fields.
    """
    chunks = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return "", _replay([message], receive)  # the browser closed the connection
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            break
    prefix = f"{CSRF_FIELD}=".encode()
    body = b"".join(chunks)
    # Counted before they are split: 16 MiB of "&" would become objects of several hundred MiB.
    if body.count(b"&") >= FIELDS_MAX:
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The form has more than {FIELDS_MAX:,} fields.")
    fields = body.split(b"&")
    tokens = [field[len(prefix) :] for field in fields if field.startswith(prefix)]
    rest = b"&".join(field for field in fields if not field.startswith(prefix))
    token = unquote_to_bytes(tokens[0]).decode(errors="replace") if tokens else ""
    return token, _replay([{"type": "http.request", "body": rest, "more_body": False}], receive)


def _replay(messages: Sequence[Message], following: Receive) -> Receive:
    """Return a `receive` that yields `messages` and then those of `following`."""
    first = iter(messages)

    async def receive() -> Message:
        return next(first, None) or await following()

    return receive

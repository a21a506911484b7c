"""Bodies of requests: bounded, and the CSRF token of a form taken from its fields."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import unquote_to_bytes

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

CSRF_FIELD = "csrf_token"
CSRF_HEADER = "x-csrf-token"

ANONYMOUS_BODY_MAX = 64 * 1024  # a log-in
BODY_MAX = 1024 * 1024  # the largest: 1,000 dead letters of a batch
# A message of 4 MiB (RocketMQ's limit); a form may encode each of its bytes by three.
MESSAGE_BODY_MAX = 16 * 1024 * 1024
FIELDS_MAX = 2_000  # of a form
_MESSAGE_PATHS = ("/topics/", "/api/v1/topics/", "/topic/")  # where messages are sent


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
            return "", _replay(message)  # the browser closed the connection
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
    return token, _replay({"type": "http.request", "body": rest, "more_body": False}, receive)


def _replay(first: Message, following: Receive | None = None) -> Receive:
    """Return a `receive` that yields `first` and then the messages of `following`."""
    is_first = True

    async def receive() -> Message:
        nonlocal is_first
        if is_first or following is None:
            is_first = False
            return first
        return await following()

    return receive

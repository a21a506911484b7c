"""Answers that a browser stores as a file."""

from __future__ import annotations

import re
from urllib.parse import quote

from fastapi import Response

NAME_CHARS_MAX = 100  # names of groups and ids of messages can be longer than names of files may be
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def download(content: str | bytes, media_type: str, filename: str) -> Response:
    """Return a file to store.

    Args:
        content: Content of the file; a text is encoded as UTF-8.
        media_type: MIME type.
        filename: Proposed name, with a suffix; it is cut to NAME_CHARS_MAX characters.
            Other characters than letters, digits and . _ - are only in the encoded form of the name.
    """
    stem, dot, suffix = filename.rpartition(".")
    filename = f"{stem[: NAME_CHARS_MAX - len(suffix) - 1]}{dot}{suffix}"
    plain = _UNSAFE.sub("_", filename)
    disposition = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"
    return Response(
        content,
        media_type=media_type,
        # A browser that guesses another type could run the content as a page.
        headers={"Content-Disposition": disposition, "X-Content-Type-Options": "nosniff"},
    )

"""Static files: URLs that name their content, and answers that browsers store permanently.

asset_url("app.js") ─→ /static/app.js?v=<hash> ─→ serve: gzip, Cache-Control: immutable
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import mimetypes
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

STATIC_DIR = Path(str(resources.files("ariane.console"))) / "static"
COMPRESSED_MIN = 500  # bytes; below, gzip saves no packet
YEAR_S = 365 * 24 * 3600
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".json": "application/json"}

router = APIRouter()


class Asset(NamedTuple):
    """The content of a static file."""

    content: bytes
    version: str  # start of the SHA-256
    media_type: str


def asset_url(path: str) -> str:
    """Return the URL of a static file; it changes with the content.

    Args:
        path: Path below static/.
    """
    return f"/static/{path}?v={_load(path).version}"


@router.get("/static/{path:path}", include_in_schema=False)
async def serve(request: Request, path: str, v: str = "") -> Response:
    """Return a static file."""
    try:
        asset = _load(path)
    except FileNotFoundError:
        raise HTTPException(404, f"No static file {path!r}.") from None
    etag = f'"{asset.version}"'
    # Only the URL with the hash of this content may be stored without asking again.
    is_versioned = v == asset.version
    headers = {
        "ETag": etag,
        "Vary": "Accept-Encoding",
        "Cache-Control": f"public, max-age={YEAR_S}, immutable" if is_versioned else "no-cache",
    }
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    content = asset.content
    if "gzip" in request.headers.get("accept-encoding", ""):
        # In a thread: all assets of a page take 70 ms.
        compressed = await asyncio.to_thread(_compress, asset)
        if len(compressed) < len(content):
            content, headers["Content-Encoding"] = compressed, "gzip"
    return Response(content, headers=headers, media_type=asset.media_type)


def _load(path: str) -> Asset:
    # A path of the URL is compared with the files that exist, never joined: it may contain "..".
    file = _files().get(path)
    if file is None:
        raise FileNotFoundError(path)
    return _read(file, file.stat().st_mtime_ns)


@lru_cache(1)
def _files() -> dict[str, Path]:
    return {file.relative_to(STATIC_DIR).as_posix(): file for file in STATIC_DIR.rglob("*") if file.is_file()}


@lru_cache(256)
def _read(file: Path, _modified_ns: int) -> Asset:
    """Return the content of a file. The time of its change is part of the key, so that an edited file is read again."""
    content = file.read_bytes()
    media_type = TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "text/plain"
    return Asset(content, hashlib.sha256(content).hexdigest()[:16], media_type)


@lru_cache(256)
def _compress(asset: Asset) -> bytes:
    return gzip.compress(asset.content, 9, mtime=0) if len(asset.content) >= COMPRESSED_MIN else asset.content

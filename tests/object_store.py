"""An object store for tests: moto's S3 on 127.0.0.1, in a process of its own that survives the programs under test.

python object_store.py PORT [unconditional]    serve until killed; `unconditional`: a planted fault, every put replaces
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

BUCKET = "tables"
# The access key of clients whose commits arrive late, as from a machine that stalls after it sent one.
STALLED_KEY = "stalled"
STALL_S = 1


@contextlib.contextmanager
def object_store(*, is_conditional: bool = True) -> Iterator[dict[str, str]]:
    """Start a store with the bucket `tables`. Yield the environment variables of its clients, which this process has too."""
    from unittest.mock import patch

    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    # Not in this process: delta-rs holds the interpreter's lock while it waits for some responses.
    command = [sys.executable, __file__, str(address[1]), *(() if is_conditional else ("unconditional",))]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    environment = {
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{address[1]}",
    }  # fmt: skip
    try:
        while server.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(address):
                break
            time.sleep(0.1)
        with patch.dict(os.environ, environment):
            from pyarrow import fs

            system, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}?allow_bucket_creation=true")
            system.create_dir(BUCKET)
            yield environment
    finally:
        server.kill()
        server.wait()


def serve(port: int, *, is_conditional: bool) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    app = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def handle(environ: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        # Of a client that was killed while it sent: a store takes an object whole, or not at all.
        is_chunked = "CONTENT_LENGTH" not in environ and environ.get("wsgi.input_terminated")
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(-1 if is_chunked else length)
        if not is_chunked and len(body) < length:
            respond("400 Bad Request", [])
            return []
        environ["wsgi.input"] = io.BytesIO(body)
        if not is_conditional:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if STALLED_KEY in environ.get("HTTP_AUTHORIZATION", "") and environ["REQUEST_METHOD"] == "PUT":
            time.sleep(STALL_S if "/_delta_log/" in environ["PATH_INFO"] else 0)
        with lock:  # moto looks for an object and puts it in two steps
            return list(app(environ, respond))

    run_simple("127.0.0.1", port, handle, threaded=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), is_conditional=sys.argv[2:] != ["unconditional"])

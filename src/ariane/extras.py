"""Packages that `pip install ariane` does not install, and the extras of the distribution that do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ariane.errors import MissingPackage

EXTRA_OF = {  # the smallest extra; `cli` contains `server`, and `console` contains `cli`
    "prometheus_client": "server",
    "yaml": "server",
    "cryptography": "server",
    "duckdb": "cli",
    "jinja2": "cli",
    "pytz": "cli",
    "rich": "cli",
    "typer": "cli",  # also of `server`; most commands need more
    "fastapi": "console",
    "httpx": "console",
    "jwt": "console",  # of the package PyJWT
    "markupsafe": "console",
    "pydantic": "console",
    "python_multipart": "console",
    "starlette": "console",
    "uvicorn": "console",
    "numpy": "spark",
    "pyarrow": "spark",
    "pyspark": "spark",
    "fastavro": "bodies",
    "google": "bodies",  # google.protobuf, of the package protobuf
    "deltalake": "objectstore",
    "pandas": "objectstore",
    "fsspec": "backup",
    "opentelemetry": "otel",
    "grpc": "grpc",
    "redis": "redis",
}


@contextmanager
def naming_extras() -> Iterator[None]:
    """Raise MissingPackage instead of ModuleNotFoundError for a package that an extra installs.

    Example:
        with naming_extras():
            import yaml
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF or isinstance(error, MissingPackage):
            raise
        raise MissingPackage(package, EXTRA_OF[package], sys.executable) from error

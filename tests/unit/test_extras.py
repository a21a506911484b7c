"""The extras of the distribution: what they install, and the errors that name them."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from ariane.errors import ArianeError, MissingPackage
from ariane.extras import EXTRA_OF, naming_extras

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
MODULES = {"protobuf": "google", "grpcio": "grpc", "pyjwt": "jwt", "pyyaml": "yaml"}  # of packages with another name
SHARED = {"typer", "pyarrow", "google"}  # of several extras
INDIRECT = {"h11", "markupsafe", "pydantic", "starlette"}  # imported, and installed by the others


def modules_of(extra: str) -> set[str]:
    names = [re.match(r"[\w-]+", requirement)[0].lower().replace("-", "_") for requirement in EXTRAS[extra]]
    modules = {"opentelemetry" if name.startswith("opentelemetry_") else MODULES.get(name, name) for name in names}
    return modules - {"ariane"}


@pytest.mark.parametrize(
    "extra", ["server", "cli", "console", "spark", "otel", "redis", "bodies", "objectstore", "backup", "grpc"]
)
def test_every_package_has_its_extra(extra: str):
    # `server` has Typer, but the error of a command names `cli`, which has everything that commands need; so with pyarrow.
    named = {module for module, name in EXTRA_OF.items() if name == extra} - INDIRECT
    assert named - SHARED == modules_of(extra) - SHARED


def test_clients_need_few_packages():
    names = [re.match(r"\w+", requirement)[0] for requirement in PROJECT["dependencies"]]
    assert names == ["msgspec", "uvloop", "lz4", "zstandard"]


def test_a_missing_package_names_its_extra():
    text = r"duckdb is not installed for .*: pip install 'ariane\[cli\]'"
    with pytest.raises(MissingPackage, match=text) as caught, naming_extras(), naming_extras():
        raise ModuleNotFoundError("No module named 'duckdb.typing'", name="duckdb.typing")
    assert isinstance(caught.value, ArianeError)
    assert isinstance(caught.value, ModuleNotFoundError)
    assert (caught.value.name, caught.value.extra) == ("duckdb", "cli")


@pytest.mark.parametrize("name", ["ariane.no_such_module", "no_such_package"])
def test_other_missing_modules_keep_their_error(name: str):
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'") as caught, naming_extras():
        import_module(name)
    assert not isinstance(caught.value, MissingPackage)

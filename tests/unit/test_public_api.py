"""`from ariane import …`: names exist, are typed, and are loaded on first use."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata, resources

import pytest

import ariane


def test_every_public_name_is_importable():
    assert len(ariane.__all__) == len(set(ariane.__all__)) > 10
    for name in ariane.__all__:
        assert getattr(ariane, name) is not None
        assert name in dir(ariane)


def test_every_error_is_a_public_name():
    names = [
        name for name, value in vars(ariane.errors).items() if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert len(names) > 10
    for name in names:
        assert name in ariane.__all__
        assert getattr(ariane, name) is getattr(ariane.errors, name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'ariane' has no attribute 'Prodcuer'"):
        getattr(ariane, "Prodcuer")  # noqa: B009 - the attribute does not exist on purpose


def test_the_version_is_that_of_the_installed_package():
    assert ariane.__version__ == metadata.version("ariane")


def test_types_are_shipped():
    assert resources.files("ariane").joinpath("py.typed").is_file()


def test_importing_the_package_loads_no_part_of_it():
    code = "import ariane, sys; print([name for name in sys.modules if name.startswith('ariane.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_producer_loads_no_server():
    code = "from ariane import Producer; import sys; print([n for n in sys.modules if n.startswith('ariane.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[1] for name in done.stdout.strip("[]\n").replace("'", "").split(", ")}
    assert loaded.isdisjoint({"broker", "nameserver", "store", "spark", "pipeline", "admin", "cli", "testing"})

"""Public names of `ariane.spark`, and that importing it loads no large dependency."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ariane.spark


def test_importing_the_package_loads_no_spark() -> None:
    code = "import sys, ariane.spark; print([n for n in ('pyspark', 'pyarrow', 'numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_stream_source_loads_neither_pandas_nor_the_decoder() -> None:
    """Spark starts a process for each stream, and these imports would be most of its CPU time."""
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    modules = "{'pandas', 'pyarrow.compute', 'ariane.spark.records.arrow_decoder', 'ariane.kernels.implementation'}"
    code = f"import sys, ariane.spark.source, ariane.spark.read.micro_batches; print({modules} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


def test_every_exported_name_exists() -> None:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    assert [getattr(ariane.spark, name).__name__ for name in ariane.spark.__all__] == ariane.spark.__all__


def test_unknown_names_raise_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'ariane.spark' has no attribute 'Source'"):
        ariane.spark.Source  # noqa: B018

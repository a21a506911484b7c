"""Destinations of Spark's output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ariane.errors import ConfigError
from ariane.pipeline.spark_session import CONNECT_VARIABLES, _stderr_to, get_or_create_session, spark_fault


def cry(word: str) -> None:
    """A process that this one starts writes to standard error."""
    subprocess.run([sys.executable, "-c", f"import os; os.write(2, b'{word}')"], check=True)


def test_child_process_output_is_redirected_to_the_file_and_our_stderr_is_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "spark.log"
    log.write_text("of the start before")
    with _stderr_to(log):
        cry("greeting")
    os.write(2, b"ours")
    cry(" later")
    assert log.read_text() == "greeting"
    assert capfd.readouterr().err == "ours later"


def test_a_failed_start_names_the_log_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "spark.log"
    with pytest.raises(RuntimeError, match="gateway") as failed, _stderr_to(log):
        cry("no memory")
        raise RuntimeError("gateway exited")
    assert failed.value.__notes__ == [f"Spark's messages are in {log}"]
    os.write(2, b"ours")
    assert (log.read_text(), capfd.readouterr().err) == ("no memory", "ours")


def test_without_a_file_nothing_changes(capfd: pytest.CaptureFixture[str]) -> None:
    with _stderr_to(None):
        cry("here")
    assert capfd.readouterr().err == "here"


@pytest.mark.skipif(spark_fault() is not None, reason=f"{spark_fault()}")
@pytest.mark.parametrize("name", CONNECT_VARIABLES)
def test_spark_connect_is_refused_before_a_session_starts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "sc://127.0.0.1:1")
    with pytest.raises(ConfigError, match=f"{name} = .*selects Spark Connect, which has no JVM"):
        get_or_create_session("jobs", "local[2]")

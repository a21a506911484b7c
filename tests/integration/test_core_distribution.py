"""What `pip install ariane` is enough for, in a process in which no other package can be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ONLY_CORE = """
import sys

class OtherPackages:
    def find_spec(self, name, path=None, target=None):
        if name not in sys.stdlib_module_names | {"ariane", "msgspec", "uvloop", "lz4", "zstandard"} and "." not in name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, OtherPackages())
"""
CLIENTS = """
from ariane import *
from ariane.blocking import Consumer, Producer
from ariane.testing import LocalCluster

with LocalCluster() as cluster:
    with Producer(cluster.namesrv, "shop") as producer:
        producer.send("orders", b"created" * 1000)
    with Consumer(cluster.namesrv, "stock", "orders", start="first") as consumer:
        print(next(iter(consumer)).body[:7])
"""
COMMAND = "import runpy; sys.argv = {}; runpy.run_module({!r}, run_name='__main__')"


def run(program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ONLY_CORE + program]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)


def test_clients_and_clusters_of_tests_need_no_extra(tmp_path: Path):
    done = run(CLIENTS, tmp_path)
    assert (done.returncode, done.stdout) == (0, "b'created'\n"), done.stderr


@pytest.mark.parametrize(
    ("program", "extra"),
    [
        ("from ariane.metrics.client_collector import ClientCollector", "server"),
        ("from ariane.otel import OpenTelemetry", "otel"),
        ("from ariane.spark import RocketMQSource", "spark"),
        (COMMAND.format(["ariane", "up"], "ariane.cli"), "cli"),
    ],
)
def test_what_needs_an_extra_names_it(program: str, extra: str, tmp_path: Path):
    done = run(program, tmp_path)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(f"is not installed for {sys.executable}: pip install 'ariane[{extra}]'")


def test_the_java_style_tool_needs_no_extra(tmp_path: Path):
    done = run("from ariane.cli.mqadmin.main import main; sys.exit(main(['help']))", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "topicList" in done.stdout

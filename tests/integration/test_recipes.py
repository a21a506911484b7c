"""docs/recipes.md: its files pass mypy --strict and run. Small modules stand in for Django, which is not installed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ariane.testing import LocalCluster

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```python\n# ([\w/]+\.py)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
STAND_INS = {
    "django/__init__.py": "",
    "django/conf.py": """
import os


class Settings:
    ARIANE_NAMESRV: str = os.environ["NAMESRV_ADDR"]


settings = Settings()
""",
    "django/http.py": """
class HttpRequest: ...


class JsonResponse:
    def __init__(self, data: object, status: int = 200) -> None:
        self.status_code = status
""",
    "django/db.py": """
from collections.abc import Callable
from contextlib import nullcontext


class transaction:
    @staticmethod
    def atomic() -> nullcontext[None]:
        return nullcontext()

    @staticmethod
    def on_commit(function: Callable[[], object]) -> None:
        function()


def close_old_connections() -> None: ...
""",
    "django/core/__init__.py": "",
    "django/core/management/__init__.py": "",
    "django/core/management/base.py": """
import sys


class Output:
    def write(self, text: str) -> None:
        print(text, flush=True)


class BaseCommand:
    stdout = Output()
""",
    "shop/__init__.py": "",
    "shop/management/__init__.py": "",
    "shop/management/commands/__init__.py": "",
    "shop/models.py": """
class Orders:
    def create(self, *, number: str) -> None: ...


class Order:
    objects = Orders()
""",
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory with the files of the page and the stand-ins."""
    for name, text in {**STAND_INS, **FILES}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def start(directory: Path, cluster: LocalCluster, *arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join((str(directory), str(ROOT / "src")))
    environment = {**os.environ, "NAMESRV_ADDR": cluster.namesrv, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=directory,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def output_of(program: subprocess.Popen[str], text: str = "") -> str:
    output, _ = program.communicate(text, timeout=60)
    assert program.returncode == 0
    return output


def test_every_file_of_the_page_has_a_name() -> None:
    assert len(FILES) == PAGE.count("```python\n") == 6


def test_the_files_pass_mypy_strict(directory: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra console is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", f"--cache-dir={os.devnull}", *FILES],
        cwd=directory,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_fastapi(directory: Path, ariane_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    testclient = pytest.importorskip("fastapi.testclient", reason="the extra console is not installed")
    monkeypatch.setenv("NAMESRV_ADDR", ariane_cluster.namesrv)
    names: dict[str, Any] = {"__name__": "web"}
    exec(compile(FILES["web.py"], "web.py", "exec"), names)
    with testclient.TestClient(names["app"]) as client:
        response = client.post("/orders/ORDER-17")
        assert response.status_code == 201
        [message] = ariane_cluster.messages("orders")
        assert response.json() == {"message": message.message_id}
        ariane_cluster.wait_consumed("stock", "orders")
        ariane_cluster.name_server.stop()
        ariane_cluster.broker.stop()
        assert client.post("/orders/ORDER-18").status_code == 503
    assert "reserved for ORDER-17\n" in capsys.readouterr().out


def test_django(directory: Path, ariane_cluster: LocalCluster) -> None:
    view = "from django.http import HttpRequest; from shop.views import place_order; "
    view += "print([place_order(HttpRequest(), number).status_code for number in ('ORDER-17', 'ORDER-18')])"
    assert output_of(start(directory, ariane_cluster, "-c", view)) == "[201, 201]\n"
    assert [message.keys for message in ariane_cluster.messages("orders")] == [("ORDER-17",), ("ORDER-18",)]

    command = "from shop.management.commands.consume_orders import Command; Command().handle()"
    program = start(directory, ariane_cluster, "-c", command)
    assert program.stdout is not None
    lines = {program.stdout.readline() for _ in range(2)}
    assert lines == {"reserved for ORDER-17\n", "reserved for ORDER-18\n"}
    program.send_signal(signal.SIGTERM)
    assert output_of(program) == ""


def test_scripts(directory: Path, ariane_cluster: LocalCluster) -> None:
    sent = output_of(start(directory, ariane_cluster, "send_report.py", "2026-01"), "a report")
    assert sent.strip() == ariane_cluster.messages("reports")[0].message_id
    assert output_of(start(directory, ariane_cluster, "read_reports.py")) == "2026-01 8\n"
    assert output_of(start(directory, ariane_cluster, "read_reports.py")) == "", "the offsets were committed"

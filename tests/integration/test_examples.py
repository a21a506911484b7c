"""The programs in `examples`: each runs as its head says, stops on Ctrl-C, and passes `mypy --strict`."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import queue
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from ariane import LocalState, ReceivedMessage
from ariane.blocking import LitePullConsumer, Producer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DEADLINE_S = 60.0
# What a program may log: its consumer can start before the name server has the route of a new topic.
EXPECTED_LOG = re.compile(r"cannot read topic \S+ yet")


class Program:
    """A running example and its output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(process.stdout, self._lines.put), daemon=True),
            threading.Thread(target=self._read, args=(process.stderr, self._errors.append), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self.output: list[str] = []

    def wait_line(self, pattern: str) -> str:
        """Return the next line that matches."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                line = self._lines.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line {pattern!r} in {self.output}; stderr: {self._errors}") from None
            self.output.append(line or "")
            if line and re.search(pattern, line):
                return line

    def interrupt(self) -> int:
        """Press Ctrl-C and return the exit status."""
        self._process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        """Return the exit status; fail if the program wrote errors."""
        status = self._process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join(DEADLINE_S)
        while not self._lines.empty():
            self.output.append(self._lines.get() or "")
        assert [line for line in self._errors if not EXPECTED_LOG.search(line)] == []
        return status

    @staticmethod
    def _read(stream: Any, add: Any) -> None:
        for line in stream:
            add(line.rstrip("\n"))


@pytest.fixture
def namesrv(ariane_cluster: Any) -> str:
    return str(ariane_cluster.namesrv)


@contextmanager
def running(name: str, *arguments: str, namesrv: str, cwd: Path, text: str = "") -> Iterator[Program]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "NAMESRV_ADDR": namesrv},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.close()
        yield Program(process)
    finally:
        process.kill()
        process.wait()


def load(name: str) -> ModuleType:
    """Import an example."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_order_service_and_push_consumer(namesrv: str, tmp_path: Path):
    with running("order_service.py", namesrv=namesrv, cwd=tmp_path) as service:
        created = service.wait_line(r"ORDER-2 created").split()
        paid = service.wait_line(r"ORDER-2 paid").split()
        assert service.interrupt() == 0
    assert created[3] == paid[3]  # the queue
    assert int(created[5]) < int(paid[5])
    with Producer(namesrv, "test") as producer:
        producer.send("orders", b"no JSON", tags="created")

    with running("push_consumer.py", namesrv=namesrv, cwd=tmp_path) as consumer:
        consumer.wait_line("waiting")
        consumer.wait_line("reserved ORDER-2 created after 1 redeliveries")
        while not any(line.startswith("dead letter") for line in consumer.output):
            consumer.wait_line("dead letter")
        assert consumer.interrupt() == 0
    assert "retry ORDER-2" in consumer.output
    assert "reserved ORDER-1 paid after 0 redeliveries" in consumer.output
    assert consumer.output[-1].startswith("stopped after")


def test_consumer_loop(namesrv: str, tmp_path: Path):
    with Producer(namesrv, "test") as producer:
        for order_id, amount in (("ORDER-1", 100), ("ORDER-2", 50)):
            producer.send("orders", b'{"order": "%s", "amount": %d}' % (order_id.encode(), amount), tags="created")
        producer.send("orders", b"no JSON", tags="created")
        producer.send("orders", b"no JSON, but another tag", tags="paid")

    with running("consumer.py", namesrv=namesrv, cwd=tmp_path) as consumer:
        consumer.wait_line("waiting")
        seen = sorted(consumer.wait_line("^(ORDER|rejected)").split()[0] for _ in range(3))
        assert seen == ["ORDER-1", "ORDER-2", "rejected"]
        assert consumer.interrupt() == 0
    assert consumer.output[-1] == "stopped at 150"


def test_delayed_reminders_wait_at_the_broker(namesrv: str, tmp_path: Path):
    with running("order_service.py", namesrv=namesrv, cwd=tmp_path) as service:
        service.wait_line("ORDER-1 paid")
        assert service.interrupt() == 0
    with LitePullConsumer(namesrv, "reader", {"orders": "*", "payment-reminders": "*"}, start="first") as reader:
        topics = [message.topic for message in reader.poll(timeout=10)]
    assert topics
    assert set(topics) == {"orders"}


def test_blocking_script(namesrv: str, tmp_path: Path):
    with running(
        "blocking_script.py", "send", "notes", namesrv=namesrv, cwd=tmp_path, text="one\n\ntwo\nthree\n"
    ) as script:
        script.wait_line("sent 3 messages")
        assert script.wait() == 0
    with running("blocking_script.py", "read", "notes", namesrv=namesrv, cwd=tmp_path) as script:
        for note in ("one", "two", "three"):
            script.wait_line(f"^{note}$")
        assert script.interrupt() == 0


def test_blocking_script_explains_its_usage(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "blocking_script.py", "copy"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "usage: blocking_script.py send|read TOPIC\n")


def test_transaction_with_a_database(namesrv: str, tmp_path: Path):
    with running("transaction_database.py", namesrv=namesrv, cwd=tmp_path) as program:
        assert program.wait() == 0
    assert program.output == ["ORDER-1 COMMIT", "ORDER-2 ROLLBACK", "ORDER-3 COMMIT"]
    with LitePullConsumer(namesrv, "reader", {"paid": "*"}, start="first") as reader:
        bodies: set[bytes] = set()
        deadline = time.monotonic() + DEADLINE_S
        while len(bodies) < 2 and time.monotonic() < deadline:
            bodies |= {message.body for message in reader.poll(timeout=1)}
    assert bodies == {b"ORDER-1", b"ORDER-3"}


def test_the_check_decides_by_the_database(namesrv: str, tmp_path: Path):
    with Producer(namesrv, "test") as producer:
        producer.send("paid", b"ORDER-1")
    with LitePullConsumer(namesrv, "reader", {"paid": "*"}, start="first") as reader:
        (message,) = reader.poll(timeout=DEADLINE_S)
    payments = load("transaction_database").Payments(str(tmp_path / "payments.db"))

    def check(born_at: datetime) -> LocalState:
        born: ReceivedMessage = msgspec.structs.replace(message, born_ms=int(born_at.timestamp() * 1000))
        return asyncio.run(payments.check(born))

    recent, old = datetime.now(UTC), datetime.now(UTC) - timedelta(hours=1)
    assert check(recent) is LocalState.UNKNOWN
    assert check(old) is LocalState.ROLLBACK
    payments.pay("ORDER-1", 100, message.message_id)
    assert check(recent) is check(old) is LocalState.COMMIT


def test_request_and_reply(namesrv: str, tmp_path: Path):
    with running("request_reply.py", "serve", namesrv=namesrv, cwd=tmp_path) as server:
        server.wait_line("ready")
        with running("request_reply.py", "ask", "17", "x", namesrv=namesrv, cwd=tmp_path) as client:
            assert client.wait() == 0
        assert server.interrupt() == 0
    assert client.output == ["17 289", "x not a whole number: b'x'"]


def test_tests_of_an_application(tmp_path: Path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", tmp_path]
    done = subprocess.run(
        [*command, EXAMPLES / "test_order_service.py"], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_every_example_is_tested_here_and_listed_in_the_guide():
    source = Path(__file__).read_text()
    guide = (ROOT / "docs" / "client.md").read_text()
    names = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert len(names) >= 7
    assert [name for name in names if name.removesuffix(".py") not in source] == []
    assert [name for name in names if name not in guide] == []


def test_examples_pass_mypy_strict(tmp_path: Path):
    """Also the README, docs/client.md, whose listeners have no annotations, and what applications see of generic classes."""
    guide = tmp_path / "client_guide.py"
    guide.write_text(as_functions(examples_of(ROOT / "docs" / "client.md")))
    readme = [tmp_path / name for name in ("readme_program.py", "readme_test.py")]
    for path, block in zip(readme, examples_of(ROOT / "README.md"), strict=True):
        path.write_text(block)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", f"--cache-dir={os.devnull}"),
            *("examples", "tests/data/typed_clients.py", str(guide), *map(str, readme)),
        ],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def examples_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def as_functions(blocks: list[str]) -> str:
    """Return a module in which each example is a function, so that names of one do not affect the others."""
    imports = dict.fromkeys(re.findall(r"^(?:from|import) .*$", "".join(blocks), re.MULTILINE))
    functions = [
        f"async def example_{number}() -> None:\n" + textwrap.indent(block, "    ")
        for number, block in enumerate(blocks)
        if "asyncio.run(" not in block  # a whole program
    ]
    head = '# mypy: disable-error-code="no-untyped-def, no-untyped-call"\nNAMESRV = "127.0.0.1:9876"'
    return "\n".join([head, *imports, *functions])

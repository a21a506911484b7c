"""The official clients of RocketMQ 5, unmodified, at our gRPC port: Python 5.1.2, Java 5.2.0, Go 5.1.4, Node 1.0.8, Rust 5.0.0.

Each is fetched once from its package registry, to ARIANE_PEERS_DIR (default ~/.cache/ariane/peers).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ariane.cluster.admin import Admin
from ariane.console.areas.traces.trace_sources import FetchedTrace, fetch_live_trace
from ariane.model.topic import TRACE_TOPIC, SubscriptionGroupConfig
from ariane.reports.trace_steps import StepKind
from ariane.testing import LocalCluster
from grpc_transports import NEEDS_NATIVE
from rocketmq5_peers import JAVA_CLIENT, fetched, maven

PROGRAMS = Path(__file__).parent / "official_5x_clients"
PYTHON_CLIENT = "rocketmq-python-client==5.1.2"
NODE_CLIENT = "rocketmq-client-nodejs@1.0.8"
RUST_CLIENT = "rocketmq-rust-5.0.0"
GO_CLIENT = "rocketmq-go-5.1.4"
TIMEOUT_S = 150.0
TOPICS = (
    *("Python", "PythonTransactions", "PythonOrdered", "PythonTraced"),
    *(
        "Java",
        "JavaTransactions",
        "JavaOrdered",
        "Node",
        "Rust",
        "RustTransactions",
        "Go",
        "GoTransactions",
        "GoOrdered",
        "orders",
    ),
)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "rocketmq-5.md"


@pytest.fixture(scope="module")
def client_python() -> str:
    """Return the Python of an environment with the client: its releases of grpcio and protobuf may differ from ours."""

    def fetch(home: Path) -> list[list[str]]:
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "-q", PYTHON_CLIENT]
        return [[sys.executable, "-m", "venv", str(home)], pip]

    return str(fetched(PYTHON_CLIENT.replace("==", "-"), fetch) / "bin" / "python")


@pytest.fixture(scope="module")
def java_command() -> list[str]:
    def fetch(home: Path) -> list[list[str]]:
        return [maven(PROGRAMS / "pom.xml", home)]

    jar = fetched(JAVA_CLIENT.removesuffix(".jar"), fetch) / JAVA_CLIENT
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", str(jar), str(PROGRAMS / "ClientProgram.java")]


@pytest.fixture(scope="module")
def node_modules() -> Path:
    def fetch(home: Path) -> list[list[str]]:
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(home)]
        return [["npm", "install", "--silent", *options, NODE_CLIENT]]

    return fetched(NODE_CLIENT.replace("@", "-"), fetch) / "node_modules"


@pytest.fixture(scope="module")
def rust_project() -> Callable[[str], Path]:
    """Return a function that builds a program and returns its file. The first build compiles 300 crates: 165 s of CPU time."""

    def fetch(home: Path) -> list[list[str]]:
        shutil.copytree(PROGRAMS / "rust", home, dirs_exist_ok=True)
        return [["cargo", "fetch", "-q", "--manifest-path", str(home / "Cargo.toml")]]

    home = fetched(RUST_CLIENT, fetch)

    def build(program: str) -> Path:
        (home / "client_program.rs").write_text(program, encoding="utf-8")
        command = ["cargo", "build", "-q", "--offline", "--manifest-path", str(home / "Cargo.toml")]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stderr[-4000:]
        return home / "target" / "debug" / "client_program"

    return build


@pytest.fixture(scope="module")
def go_project() -> Callable[[str], Path]:
    """Return a function that builds a program and returns its file."""

    def fetch(home: Path) -> list[list[str]]:
        shutil.copytree(PROGRAMS / "go", home, dirs_exist_ok=True)
        return [["go", "-C", str(home), "mod", "download"]]

    home = fetched(GO_CLIENT, fetch)

    def build(program: str) -> Path:
        (home / "client_program.go").write_text(program, encoding="utf-8")
        command = ["go", "-C", str(home), "build", "-gcflags=all=-N -l", "-o", "client_program", "."]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stderr[-4000:]
        return home / "client_program"

    return build


NATIVE_IS_LONG = pytest.mark.long(
    "tests/integration/test_grpc_port.py::test_a_message_is_sent_received_and_acknowledged",
    "tests/integration/test_plain_grpc_sends.py::test_sends_of_a_turn_are_those_of_single_calls",
)


@pytest.fixture(scope="module", params=["aio", pytest.param("native", marks=[NEEDS_NATIVE, NATIVE_IS_LONG])])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    pytest.importorskip("grpc", reason="the extra grpc is not installed")
    settings = {"grpc_transport": request.param, "transaction_check_interval": 500, "transaction_time_out": 500}
    with LocalCluster(grpc_server_enable=True, **settings) as servers:
        for topic in TOPICS:
            servers.create_topic(topic)
        yield servers


@pytest.fixture(scope="module")
def address(cluster: LocalCluster) -> str:
    return cluster.broker.grpc_addr


def run_python(python: str, address: str, program: str, **values: object) -> list[dict[str, Any]]:
    """Return the events of a program, which has to end by itself."""
    arguments = [f"{name}={value}" for name, value in values.items()]
    command = [python, str(PROGRAMS / "client_program.py"), address, "", "", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events and events[-1] == {"event": "done"}, done.stdout + done.stderr
    return events[:-1]


def test_python_sends_receives_and_recalls_each_kind_of_message(client_python: str, address: str) -> None:
    *sent, recalled = run_python(client_python, address, "produce", topic="Python")
    assert recalled == {"event": "recalled", "id": recalled["expected"], "expected": recalled["expected"]}
    assert [bool(event["recall"]) for event in sent] == [False, False, True]

    received = run_python(client_python, address, "simple", topic="Python", group="simple", count=3)
    by_body = {event["body"]: event for event in received}
    assert by_body.keys() == {"normal", "ordered", "delayed"}
    assert [by_body[body]["id"] for body in ("normal", "ordered", "delayed")] == [event["id"] for event in sent]
    normal = by_body["normal"]
    assert (normal["tag"], normal["keys"], normal["properties"]) == ("A", ["key-1"], {"name": "value"})
    assert by_body["ordered"]["group"] == "group-1"
    assert not any(event["is_corrupted"] for event in received)

    pushed = run_python(client_python, address, "push", topic="Python", group="push", count=3)
    assert sorted((event["body"], event["attempt"]) for event in pushed) == [
        (body, attempt) for body in ("delayed", "normal", "ordered") for attempt in (1, 2)
    ]


async def complete_trace(name_server: str, message_id: str) -> FetchedTrace:
    """Return the trace of a message once it was consumed: the broker writes its records within a second."""
    async with Admin(name_server) as admin, asyncio.timeout(TIMEOUT_S):
        while True:
            fetched = await fetch_live_trace(admin, message_id, TRACE_TOPIC)
            if any(step.kind is StepKind.DELIVERY and step.result == "success" for step in fetched.trace.steps):
                return fetched
            await asyncio.sleep(0.1)


def test_a_message_whose_client_knows_nothing_of_traces_has_a_timeline(
    client_python: str, address: str, cluster: LocalCluster
) -> None:
    sent = run_python(client_python, address, "produce", topic="PythonTraced")[0]
    run_python(client_python, address, "push", topic="PythonTraced", group="traced", count=3)

    fetched = asyncio.run(complete_trace(cluster.namesrv, sent["id"]))
    assert (fetched.facts.topic, fetched.facts.keys) == ("PythonTraced", "key-1")
    steps = fetched.trace.steps
    assert [step.kind for step in steps] == [StepKind.SEND, StepKind.STORE, StepKind.DELIVERY, StepKind.DELIVERY]
    assert [(step.result, step.retry_times) for step in steps[2:]] == [("failed", 0), ("success", 1)]
    assert {step.error_ms for step in steps} == {0}  # all times are the broker's


def in_groups(deliveries: Iterable[tuple[str, int]]) -> dict[str, list[tuple[str, int]]]:
    """Return the deliveries (body, attempt) of each message group, the first letter of bodies."""
    groups: dict[str, list[tuple[str, int]]] = {}
    for body, attempt in deliveries:
        groups.setdefault(body[0], []).append((body, attempt))
    return groups


def create_ordered_group(name_server: str, group: str) -> None:
    async def create() -> None:
        async with Admin(name_server) as admin:
            await admin.save_group(SubscriptionGroupConfig(group_name=group, consume_message_orderly=True))

    asyncio.run(create())


IN_ORDER = {name: [(f"{name}1", 1), (f"{name}1", 2), (f"{name}2", 1), (f"{name}3", 1)] for name in "ab"}


def test_python_consumes_the_messages_of_a_message_group_in_order(
    client_python: str, address: str, cluster: LocalCluster
) -> None:
    create_ordered_group(cluster.namesrv, "ordered")
    events = run_python(client_python, address, "ordered", topic="PythonOrdered", group="ordered")
    assert in_groups((event["body"], event["attempt"]) for event in events) == {
        name: [(body, 1) for body, _ in deliveries] for name, deliveries in IN_ORDER.items()
    }


def test_transactions_of_python_are_committed_rolled_back_and_checked(client_python: str, address: str) -> None:
    (checked,) = run_python(client_python, address, "transactions", topic="PythonTransactions")
    assert checked == {"event": "checked", "body": "checked"}
    received = run_python(client_python, address, "simple", topic="PythonTransactions", group="transactions", count=2)
    assert sorted(event["body"] for event in received) == ["checked", "commit"]


@pytest.mark.long(
    "tests/interop/test_official_5x_clients.py::test_python_sends_receives_and_recalls_each_kind_of_message",
    "tests/interop/test_official_5x_clients.py::test_node_sends_receives_and_retries",
)
def test_java_with_its_defaults_which_encrypt(java_command: list[str], address: str, cluster: LocalCluster) -> None:
    create_ordered_group(cluster.namesrv, "java-ordered")
    command = [*java_command, address, "Java", "JavaTransactions", "JavaOrdered", "java"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    lines = done.stdout.splitlines()
    ordered = [line.split() for line in lines if line.startswith("ordered ")]
    assert in_groups((body, int(attempt)) for _, body, attempt in ordered) == IN_ORDER
    events = Counter(line for line in lines if not line.startswith("ordered "))
    events.subtract([next(line for line in events if line.startswith("sent normal 01"))])
    assert events.total() == 19, done.stdout + done.stderr
    for line in (
        "recalled recalled true",
        "checked checked ",
        "check arrived true",
        "received normal 1 A [key-normal] {name=value} -",
        "received ordered 1 - [] {} group-1",
        "received delayed 1 - [] {} -",
        *(f"pushed {body} {n}" for body in ("normal", "ordered", "delayed", "commit", "checked") for n in (1, 2)),
        "push complete true",
        "order complete true",
        "done  ",
    ):
        assert events[line] == 1, f"{line}: {done.stdout}{done.stderr}"
    message_id = next(line.split()[2] for line in lines if line.startswith("sent normal 01"))
    steps = asyncio.run(complete_trace(cluster.namesrv, message_id)).trace.steps
    assert [step.kind for step in steps[:2]] == [StepKind.SEND, StepKind.STORE]
    assert {step.group for step in steps[2:]} >= {"java-simple", "java-push"}


def test_node_sends_receives_and_retries(node_modules: Path, address: str) -> None:
    command = ["node", str(PROGRAMS / "client_program.js"), address, "Node", "node"]
    environment = {**os.environ, "NODE_PATH": str(node_modules)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    lines = sorted(line.strip() for line in done.stdout.splitlines())
    pushed = [f"pushed {body} {attempt}" for body in ("delayed", "normal", "ordered") for attempt in (1, 2)]
    received = ["received delayed 1", "received normal 1 A", "received ordered 1"]
    assert lines == ["done", *pushed, *received, "sent"], done.stdout + done.stderr


RUST_IS_LONG = pytest.mark.long(
    "tests/interop/test_official_5x_clients.py::test_python_sends_receives_and_recalls_each_kind_of_message",
    "tests/interop/test_official_5x_clients.py::test_transactions_of_python_are_committed_rolled_back_and_checked",
)


@RUST_IS_LONG
@pytest.mark.timeout(1800)
def test_rust_sends_receives_and_ends_transactions(rust_project: Callable[[str], Path], address: str) -> None:
    program = rust_project((PROGRAMS / "rust" / "client_program.rs").read_text(encoding="utf-8"))
    command = [str(program), address, "Rust", "RustTransactions", "rust"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    first, *lines = done.stdout.splitlines()
    ordered = [line for line in lines if line.startswith("received ordered")]
    assert ordered == ["received ordered-1 1 - [] group-1", "received ordered-2 1 - [] group-1"]
    assert first.startswith("sent normal ") and sorted({*lines} - {*ordered}) == [
        "checked checked",
        "done",
        "received checked 1 - [] -",
        "received committed 1 - [] -",
        "received delayed 1 - [] -",
        'received normal 1 A ["key"] -',
        'received normal 2 A ["key"] -',
    ], done.stdout + done.stderr


GO_IS_LONG = pytest.mark.long(
    "tests/interop/test_official_5x_clients.py::test_python_sends_receives_and_recalls_each_kind_of_message",
    "tests/interop/test_official_5x_clients.py::test_transactions_of_python_are_committed_rolled_back_and_checked",
    "tests/interop/test_official_5x_clients.py::test_python_consumes_the_messages_of_a_message_group_in_order",
)


@GO_IS_LONG
@pytest.mark.timeout(900)
def test_go_with_its_defaults_which_encrypt(
    go_project: Callable[[str], Path], address: str, cluster: LocalCluster, tmp_path: Path
) -> None:
    create_ordered_group(cluster.namesrv, "go-ordered")
    program = go_project((PROGRAMS / "go" / "client_program.go").read_text(encoding="utf-8"))
    command = [str(program), address, "Go", "GoTransactions", "GoOrdered", "go"]
    environment = {**os.environ, "HOME": str(tmp_path)}  # for its log
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    first, *lines = done.stdout.splitlines()
    ordered = [line.split() for line in lines if line.startswith("pushed go-ordered")]
    assert in_groups((body, int(attempt)) for *_, body, attempt in ordered) == {
        name: [(f"{name}{number}", 1) for number in (1, 2, 3)] for name in "ab"
    }, done.stdout + done.stderr
    assert first.startswith("sent normal ")
    assert sorted(line for line in lines if not line.startswith("pushed go-ordered")) == [
        "checked checked",
        "done",
        *(f"pushed go-push {body} {attempt}" for body in ("delayed", "normal", "ordered") for attempt in (1, 2)),
        "recalled true",
        "received checked 1 - [] -",
        "received committed 1 - [] -",
        "received delayed 1 - [] -",
        "received normal 1 A [key] -",
        "received ordered 1 - [] group-1",
    ], done.stdout + done.stderr


def example(language: str, address: str) -> str:
    """Return the program of the page, with another address."""
    program = PAGE.read_text(encoding="utf-8").split(f"```{language}\n")[1].split("```")[0]
    assert "127.0.0.1:8081" in program
    return program.replace("127.0.0.1:8081", address)


def test_the_example_for_python(client_python: str, address: str) -> None:
    program = example("python", address) + "producer.shutdown()\nconsumer.shutdown()\n"
    done = subprocess.run([client_python, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "b'created'" in done.stdout.splitlines(), done.stdout + done.stderr


def test_the_example_for_node(node_modules: Path, address: str) -> None:
    program = f"(async () => {{ {example('js', address)} process.exit(0); }})();"
    environment = {**os.environ, "NODE_PATH": str(node_modules)}
    done = subprocess.run(
        ["node", "-e", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "created" in done.stdout.splitlines(), done.stdout + done.stderr


@RUST_IS_LONG
@pytest.mark.timeout(1800)
def test_the_example_for_rust(rust_project: Callable[[str], Path], address: str) -> None:
    program = rust_project(example("rust", address))
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert "created" in done.stdout.splitlines(), done.stdout + done.stderr


@GO_IS_LONG
@pytest.mark.timeout(900)
def test_the_example_for_go(go_project: Callable[[str], Path], address: str, tmp_path: Path) -> None:
    imports, statements = example("go", address).split(")\n\n", 1)
    program = go_project(
        f'package main\nimport ("context"; "fmt"; "time")\n{imports})\nfunc main() {{\n{statements}\n}}\n'
    )
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run([str(program)], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "created" in done.stdout.splitlines(), done.stdout + done.stderr

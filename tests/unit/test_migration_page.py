"""docs/migration.md: each name, attribute and argument of this package that its tables mention exists."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import ariane
from ariane import blocking, payloads
from ariane.client.consuming import assignment_strategy
from ariane.client.sending import message_arguments

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migration.md"

# Names of the tables that stand for instances.
INSTANCES: dict[str, tuple[Any, ...]] = {
    "producer": (ariane.Producer, ariane.TransactionProducer),
    "consumer": (
        ariane.Consumer,
        ariane.LitePullConsumer,
        ariane.PullConsumer,
        ariane.PushConsumer,
        ariane.SimpleConsumer,
    ),
    "message": (ariane.Message, ariane.ReceivedMessage, ariane.ConsumerMessage, ariane.PoppedMessage),
    "result": (ariane.SendResult,),
    "queue": (ariane.MessageQueue,),
    "admin": (ariane.Admin,),
}
MODULES = {"errors": ariane.errors, "blocking": blocking}
OTHERS = {"by_circle": assignment_strategy.by_circle, "Json": payloads.Json}
# Values of the application.
VALUES = {
    "NAMESRV",
    "Order",
    "asyncio",
    "at",
    "check",
    "end",
    "execute",
    "first",
    "instance",
    "key",
    "listener",
    "messages",
    "on_send",
    "order",
    "secret",
    "select",
    "task",
}


def rows() -> list[tuple[int, str]]:
    """Return line number and middle column of the tables that have code there."""
    found, in_code_table = [], False
    for number, line in enumerate(PAGE.read_text(encoding="utf-8").splitlines(), 1):
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            in_code_table = False
        elif cells[1:] == ["here", "difference"]:
            in_code_table = True
        elif in_code_table and not set(cells[0]) <= {"-"}:
            assert len(cells) == 3, f"line {number}: {len(cells)} columns"
            found.append((number, cells[1]))
    return found


def faults(code: str) -> list[str]:
    """Return what is wrong with the names of a cell's code."""
    text = f"async def _():\n    {code}{' pass' if code.endswith(':') else ''}"
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            found += call_faults(node)
        elif isinstance(node, ast.Attribute) and not targets(node):
            found.append(f"no {ast.unparse(node)}")
        elif isinstance(node, ast.Name) and not known(node.id):
            found.append(f"unknown name {node.id}")
    return found


def known(name: str) -> bool:
    return name in ariane.__all__ or name in INSTANCES or name in MODULES or name in OTHERS or name in VALUES


def targets(node: ast.expr) -> list[Any]:
    """Return the objects that an expression may be; an object without members for a value of the application."""
    if isinstance(node, ast.Name):
        if node.id in INSTANCES:
            return list(INSTANCES[node.id])
        if node.id in MODULES:
            return [MODULES[node.id]]
        if node.id in OTHERS:
            return [OTHERS[node.id]]
        return [getattr(ariane, node.id)] if node.id in ariane.__all__ else []
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id in VALUES:
            return [object]
        owners = targets(node.value)
        if isinstance(node.value, ast.Attribute) and node.value.attr == "queue":
            owners = [ariane.MessageQueue]
        if isinstance(node.value, ast.Attribute) and node.value.attr == "properties":
            owners = [dict]
        return [getattr(owner, node.attr) for owner in owners if hasattr(owner, node.attr)]
    if isinstance(node, ast.Call):  # an instance of a class, or whatever a function returns
        return [target for target in targets(node.func) if isinstance(target, type)] or [object]
    return []


def call_faults(call: ast.Call) -> list[str]:
    wrong: list[list[str]] = []
    callables = [target for target in targets(call.func) if callable(target) and target is not object]
    for target in callables:
        names = {name for name, _ in _parameters(target)}
        wrong.append([f"{ast.unparse(call.func)} has no argument {k.arg}" for k in call.keywords if k.arg not in names])
    return min(wrong, key=len, default=[])


def _parameters(target: Any) -> list[tuple[str, Any]]:
    parameters = list(inspect.signature(target).parameters.items())
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for _, parameter in parameters):
        parameters += list(message_arguments.MessageFields.__annotations__.items())
    return parameters


@pytest.mark.parametrize(("number", "cell"), rows(), ids=lambda value: str(value)[:60])
def test_what_a_table_recommends_exists(number: int, cell: str):
    if not cell:
        return  # no counterpart: the last column says so
    code = re.fullmatch(r"`([^`]+)`", cell)
    assert code, f"line {number}: expected one piece of code, or nothing"
    assert faults(code[1]) == [], f"line {number}"


def test_constructors_accept_the_settings_that_the_tables_show():
    names = {name: getattr(ariane, name) for name in ariane.__all__} | {"key": "access-key", "secret": "secret-key"}
    shown = [cell.strip("`") for _, cell in rows() if re.fullmatch(r"`\w+Settings\(.*\)`", cell)]
    for code in shown:
        if "tls_ca_file" not in code:  # the file must exist
            eval(code, names)
    assert len(shown) > 40


def test_the_test_detects_mistakes():
    assert faults("await producer.publish(message)")
    assert faults("Producer(NAMESRV, 'g', retries=2)")
    assert faults("await producer.send(message, partition=2)")
    assert faults("errors.KafkaError")
    assert faults("ProducerConfig()")
    assert faults("message.queue.number")
    assert faults("message.timestamp")
    assert not faults("await producer.send('orders', b'x', keys=['k'], order_key='k')")


def test_every_client_and_its_settings_are_in_the_tables():
    assert len(rows()) > 150
    names = {name for name in ariane.__all__ if name.endswith(("Consumer", "Producer", "Settings"))}
    assert len(names) >= 9
    shown = " ".join(cell for _, cell in rows())
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\(", shown)] == []

"""CPU time of the steps of a send or a pull, by clocks around the functions that a turn calls.

A turn brings a hundred sends, so the clocks cost next to nothing; those of a pull, which are read for each, take a microsecond of
it. The time of a step excludes that of the steps inside it.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Step(NamedTuple):
    name: str
    module: str
    method: str  # Class.method; called in the thread of the event loop
    is_optional: bool = False  # whether the module exists only with the native implementation


SEND_STEPS = (
    Step("connection: frames in, responses out", "ariane.net.connection", "Connection.data_received"),
    Step("checks, topics, queue numbers", "ariane.broker.handlers.sending.send_turns", "SendTurns.serve"),
    Step("encoding of the turn", "ariane.kernels.sends.send_encoder", "PythonSendEncoder.encode"),
    Step("encoding of the turn", "ariane.kernels.native", "NativeSendEncoder.encode", is_optional=True),
    Step("statistics", "ariane.broker.handlers.sending.send_turns", "SendTurns._count"),
    Step("bookkeeping of the append", "ariane.store.writing.record_appender", "RecordAppender.append_run"),
    Step("write of the log", "ariane.store.log.commit_log", "CommitLog.append"),
    Step("queue entries", "ariane.broker.delivery.post_store", "PostStoreDispatcher._continue_round"),
    Step("key index", "ariane.store.index.index_builder", "IndexBuilder.on_dispatched"),
)
PULL_STEPS = (
    Step("connection: frames in, responses out", "ariane.net.connection", "Connection.data_received"),
    Step("offsets", "ariane.broker.handlers.reading.pull_turns", "PullTurns.serve"),
    Step("requests, plans, entries", "ariane.broker.handlers.reading.pull_turns", "PullTurns._collect"),
    Step("responses", "ariane.kernels.implementation", "PythonCore.answer_pulls"),
    Step("responses", "ariane.kernels.native", "NativeCore.answer_pulls", is_optional=True),
    Step("statistics", "ariane.broker.handlers.reading.pull_turns", "PullTurns._record"),
)
REST = "event loop, flushes"


class StepTimes:
    """Measures the steps within a `with` block."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self._steps = steps
        self._ns: dict[str, int] = {}
        self._inner_ns: list[int] = []  # of each step that runs now: the time of the steps inside it
        self._originals: list[tuple[type, str, Callable[..., Any]]] = []

    def __enter__(self) -> StepTimes:
        for step in self._steps:
            owner = owner_of(step)
            if owner is not None:
                self._wrap(owner, step)
        return self

    def __exit__(self, *_: object) -> None:
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)

    def per_message_us(self, total_s: float, count: int) -> dict[str, float]:
        """Return the time of each step per message, and what is left of the total, in µs."""
        steps = {name: ns / 1000 / count for name, ns in self._ns.items()}
        return {**steps, REST: max(0.0, total_s * 1e6 / count - sum(steps.values()))}

    def _wrap(self, owner: type, step: Step) -> None:
        attribute = step.method.partition(".")[2]
        original = getattr(owner, attribute)
        self._ns.setdefault(step.name, 0)

        @functools.wraps(original)
        def measured(*args: Any, **options: Any) -> Any:
            self._inner_ns.append(0)
            began = time.thread_time_ns()
            try:
                return original(*args, **options)
            finally:
                took = time.thread_time_ns() - began
                self._ns[step.name] += took - self._inner_ns.pop()
                if self._inner_ns:
                    self._inner_ns[-1] += took

        setattr(owner, attribute, measured)
        self._originals.append((owner, attribute, original))


def owner_of(step: Step) -> type | None:
    """Return the class of a step; None if the native implementation does not exist."""
    try:
        module = importlib.import_module(step.module)
    except ModuleNotFoundError:
        if step.is_optional:
            return None
        raise
    owner: type = getattr(module, step.method.partition(".")[0])
    return owner

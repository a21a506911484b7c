"""The pure parts of benches/broker.py: reports of the load program, warm-up, statistics, expectations, the tables of the page."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benches" / "results" / "broker.json"
REPORT = {
    "messages": 1000,
    "seconds": 2.0,
    "rate": 500,
    "latency_us": {"p50": 1500.0, "p99": 4000.0, "max": 5000.0},
    "cpu_seconds": 0.5,
    "readable_seconds": 2.5,
    "readable_rate": 400,
    "broker_cpu_us": 12.5,
}


@pytest.fixture(scope="module")
def benches() -> Any:
    """Import modules from the directory benches/."""
    before = list(sys.path)
    sys.path.insert(0, str(ROOT / "benches"))
    names = ("figures", "page", "plot", "load_program", "warm_up", "loads", "machine", "steps", "broker", "signed")
    modules = {name: importlib.import_module(name) for name in names}
    sys.path[:] = before
    return type("Benches", (), modules)


def result_of(benches: Any, rounds: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    return {
        "measured": "2026-01-02T03:04:05+00:00",
        "rounds": 3,
        "sizes": {"seconds": 4.0},
        "machine": {
            "processor": "P",
            "cores": 2,
            "memory_gib": 8,
            "kernel": "Linux 6",
            "file_system": "ext4",
            "load_average_before": 0.1,
        },
        "versions": {"python": "3.11", "java": "17"},
        "servers": {server: server for server in rounds},
        "skipped": {} if "native" in rounds else {"native": "not installed"},
        "warm_up": {"java": {"async": [[1000.0, 0.5], [2000.0, 0.04]]}},
        "warm_up_window_s": 5.0,
        "figures": benches.figures.summarize(benches.figures.with_costs(rounds)),
        "steps": {"python": {"encoding": 10.0, "rest": 2.5}},
    }


# --- reports of the load program ---


def test_figures_of_a_report(benches: Any) -> None:
    report = benches.load_program.parse_report("a line before\n" + json.dumps(REPORT) + "\n")
    assert benches.load_program.load_figures("x", report) == {
        "x msg/s": 500,
        "x readable/s": 400,
        "x p50 ms": 1.5,
        "x p99 ms": 4.0,
        "x cpu us": 12.5,
        "x load program %": 20.0,
    }


@pytest.mark.parametrize("output", ["", "no JSON", "[1]", '{"messages": 1}'])
def test_other_output_is_refused(benches: Any, output: str) -> None:
    with pytest.raises(SystemExit, match="Invalid report of ariane-load"):
        benches.load_program.parse_report(output)


def test_a_load_without_messages_is_refused(benches: Any) -> None:
    with pytest.raises(SystemExit, match="x: no message"):
        benches.load_program.load_figures("x", {**REPORT, "messages": 0})


# --- warm-up ---


@pytest.mark.parametrize(
    ("windows", "is_settled"),
    [
        ([], False),
        ([(100, 0), (100, 0)], False),  # too few
        ([(50, 0.9), (100, 0.5), (104, 0.05)], True),
        ([(50, 0.9), (100, 0.5), (106, 0.05)], False),  # the rate still grows
        ([(50, 0.9), (100, 0.5), (100, 0.2)], False),  # the compiler still works
        ([(100, 0), (100, 0), (90, 0)], False),  # a fall is a change, too
    ],
)
def test_a_broker_has_settled(benches: Any, windows: list[tuple[float, float]], is_settled: bool) -> None:
    assert benches.warm_up.is_settled([benches.warm_up.Window(*window) for window in windows]) is is_settled


# --- statistics and expectations ---


def test_medians_spread_and_ratio(benches: Any) -> None:
    rounds = {"native": {"pipelined-128 msg/s": [90.0, 70.0, 80.0]}, "java": {"pipelined-128 msg/s": [10.0, 8.0, 12.0]}}
    figure = benches.figures.summarize(rounds)["pipelined-128 msg/s"]
    assert figure["java"] == {"median": 10.0, "least": 8.0, "most": 12.0, "rounds": [10.0, 8.0, 12.0]}
    native = figure["native"]
    assert (native["median"], native["least"], native["most"], native["ratio"]) == (80.0, 70.0, 90.0, 8.0)
    assert (native["expected"], native["reached"]) == (">= 8", True)


@pytest.mark.parametrize(
    ("name", "server", "ours", "java", "expected", "reached"),
    [
        ("pipelined-1024 msg/s", "native", 49, 10, ">= 5", False),
        ("pipelined-128 msg/s", "python", 15, 10, ">= 1.5", True),
        ("queues-1000 msg/s", "native", 30, 10, ">= 3", True),
        ("queues-10000 readable/s", "native", 30, 10, ">= 5", False),
        ("pull-writer-1024 msg/s", "native", 21, 10, ">= 2", True),
        ("java-64-128 cpu us", "native", 2, 10, "<= 1/8", False),
        ("keys p99 ms", "python", 9, 10, "<= 1", True),
        ("peak RSS MiB", "python", 100, 1000, "<= 1/20", False),
        ("start s", "native", 0.3, 1.5, "<= 0.3", True),
        ("cost at 10,000 queues / at 64", "native", 1.2, 9, "1 ± 0.15", False),
        ("cost at 10,000 queues / at 64", "python", 1.2, 9, "1 ± 0.25", True),
    ],
)
def test_expectations(
    benches: Any, name: str, server: str, ours: float, java: float, expected: str, reached: bool
) -> None:
    verdict = benches.figures.judge(name, server, ours, java)
    assert (verdict["expected"], verdict["reached"]) == (expected, reached)


def test_nothing_is_expected_without_a_goal_or_without_java(benches: Any) -> None:
    assert benches.figures.judge("queues-1 msg/s", "native", 5, 10) == {"ratio": 0.5}
    assert benches.figures.judge("java-64-128 cpu us", "python", 5, 10) == {"ratio": 0.5}
    assert benches.figures.judge("pipelined-128 msg/s", "native", 5, None) == {}


def test_costs_are_compared_round_by_round(benches: Any) -> None:
    rounds = {"java": {"queues-64 cpu us": [10.0, 20.0], "queues-10000 cpu us": [20.0, 30.0]}, "python": {"x": [1.0]}}
    assert benches.figures.with_costs(rounds) == {
        "java": {**rounds["java"], "cost at 10,000 queues / at 64": [2.0, 1.5]},
        "python": {"x": [1.0]},
    }


def test_the_text_table_names_what_falls_short(benches: Any) -> None:
    rounds = {"python": {"pipelined-128 msg/s": [10.0]}, "java": {"pipelined-128 msg/s": [10.0]}}
    head, line = benches.figures.text_table(result_of(benches, rounds)).splitlines()
    assert "native" not in head
    assert line.split()[:6] == ["pipelined-128", "msg/s", "10.00", "10.00", "1.00", ">="]
    assert "SHORT" in line


# --- the page ---


def test_tables_of_a_page(benches: Any) -> None:
    rounds = {
        "python": {"pipelined-128 msg/s": [12000.0], "pipelined-128 p99 ms": [2.0], "peak RSS MiB": [50.0]},
        "java": {"pipelined-128 msg/s": [10000.0], "pipelined-128 p99 ms": [4.0], "peak RSS MiB": [4000.0]},
    }
    text = benches.page.tables(result_of(benches, rounds))
    assert "| pipelined, 128 B, 4 queues | 12,000 (12,000–12,000) | 10,000 (10,000–10,000) | **1.20** | ≥ 1.5 |" in text
    assert "| pipelined, 128 B, 4 queues |  | 2.00 / 4.00 | 0.50 |  |" in text
    assert "| peak resident memory, MiB | 50 | 4,000 | 1/80, ≤ 1/20 |" in text
    assert "native is missing: not installed." in text
    assert "in windows of 5 s: 1,000, 2,000; in the last one its compiler used 4% of a core." in text
    assert "| all | 12.50 |" in text
    assert "What one process leaves idle" not in text, "a section without figures is omitted"


def test_a_page_keeps_its_text(benches: Any) -> None:
    page = f"before\n{benches.page.BEGIN}\nold\n{benches.page.END}\nafter\n"
    text = benches.page.replace_tables(page, None)
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert benches.page.replace_tables(text, None) == text
    with pytest.raises(SystemExit, match="has no lines"):
        benches.page.replace_tables("no marks", None)


def test_the_performance_page_shows_the_stored_result(benches: Any) -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    result = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else None
    assert benches.page.replace_tables(page, result) == page, (
        "run `python benches/broker.py --table --page docs/performance.md`"
    )


def test_the_plot_shows_the_stored_result(benches: Any) -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    picture = (ROOT / "docs" / benches.plot.FILE).read_text(encoding="utf-8")
    assert benches.plot.plot(result) == picture, "run `python benches/broker.py --table --page docs/performance.md`"


def test_the_plot_has_a_bar_for_each_server_of_a_result(benches: Any) -> None:
    figures = {panel.figure: [1.0] for panel in benches.plot.PANELS}
    result = result_of(benches, {"python": figures, "java": figures})
    root = ElementTree.fromstring(benches.plot.plot(result))
    bars = [element for element in root.iter() if element.tag.endswith("rect")]
    assert len(bars) == 1 + 2 * len(benches.plot.PANELS), "the background, and two servers in each panel"


# --- loads, servers, steps ---


def test_loads_are_chosen_by_the_beginning_of_their_names(benches: Any) -> None:
    names = [load.name for load in benches.loads.choose(["sync-64", "pipelined-128"])]
    assert names == ["pipelined-128", "sync-64-128", "sync-64-1024"]
    assert [load.name for load in benches.loads.choose(["queues-1"])] == ["queues-1"], (
        "an exact name is not a beginning"
    )
    assert {load.name for load in benches.loads.choose(list(benches.loads.QUICK))} == set(benches.loads.QUICK)
    with pytest.raises(SystemExit, match="Unknown load no-such-load"):
        benches.loads.choose(["no-such-load"])


def test_every_load_has_a_row_on_the_page(benches: Any) -> None:
    rows = {row[0] for row in benches.page.ROWS} | {"full-load"}
    assert rows == {load.name for load in benches.loads.LOADS}


def test_shares_of_threads(benches: Any) -> None:
    shares = benches.loads.thread_shares({"main 1": 1.0, "ended 2": 5.0}, {"main 1": 2.0, "new 3": 0.5}, 2.0)
    assert shares == [50.0, 25.0]


def test_servers_change_their_order(benches: Any) -> None:
    orders = [benches.broker.rotated(["a", "b", "c"], turn) for turn in range(4)]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]


def test_the_file_system_of_the_nearest_mount(benches: Any) -> None:
    mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n"
    assert benches.machine.file_system(Path("/tmp/x/y"), mounts) == "tmpfs"
    assert benches.machine.file_system(Path("/var/x"), mounts) == "ext4"


def test_every_step_exists(benches: Any) -> None:
    for step in benches.steps.SEND_STEPS + benches.steps.PULL_STEPS:
        owner = benches.steps.owner_of(step)
        assert owner is None or callable(getattr(owner, step.method.partition(".")[2])), step


def test_steps_exclude_the_steps_inside_them(benches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("clocked")

    class Work:
        def outer(self) -> str:
            return self.inner()

        def inner(self) -> str:
            return "done"

    module.Work = Work  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "clocked", module)
    steps = (benches.steps.Step("outer", "clocked", "Work.outer"), benches.steps.Step("inner", "clocked", "Work.inner"))
    ticks = iter([0, 1000, 5000, 7000])  # the outer step takes 7 µs, 4 of them in the inner one
    monkeypatch.setattr(benches.steps.time, "thread_time_ns", lambda: next(ticks))
    with benches.steps.StepTimes(steps) as times:
        assert Work().outer() == "done"
    assert times.per_message_us(9e-6, 1) == pytest.approx({"outer": 3.0, "inner": 4.0, benches.steps.REST: 2.0})
    assert Work.outer.__name__ == "outer" and not hasattr(Work.outer, "__wrapped__")


def test_shares_of_signed_requests_are_medians_of_pairs(benches: Any) -> None:
    measured = benches.signed.Measured
    rounds = {
        ("send 128 B", "native", "plain"): [measured(100_000, 2.0), measured(50_000, 2.0), measured(200_000, 3.0)],
        ("send 128 B", "native", "signed"): [measured(80_000, 2.5), measured(45_000, 4.0), measured(100_000, 5.0)],
    }
    line = benches.signed.table(rounds)[1]
    assert " ".join(line.split()) == "send 128 B native 100,000 80,000 80% >= 70% 2.00 4.00 60%"

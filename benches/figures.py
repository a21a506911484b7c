"""Figures of `broker.py`: medians, spread, ratios to Java, and what is expected of them. Pure functions."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

JAVA = "java"
OURS = ("native", "python")

Rounds = dict[str, dict[str, list[float]]]  # server → figure → value of each round


class Goal(NamedTuple):
    """What is expected of a figure, by the beginning and the end of its name."""

    begin: str
    end: str
    sign: str  # of the ratio to Java: at least, at most; ± around 1 for a figure that is a ratio itself
    native: float | None
    python: float | None


# The first goal that fits counts.
GOALS = (
    Goal("pipelined-1024", " msg/s", ">=", 5, 1.5),
    Goal("pipelined-", " msg/s", ">=", 8, 1.5),
    Goal("queues-64", " msg/s", ">=", 4, 1),
    Goal("queues-1000 ", "msg/s", ">=", 3, 1),
    Goal("queues-10000", " readable/s", ">=", 5, 1),
    Goal("java-64-", " msg/s", ">=", 1.5, 1.2),
    Goal("java-64-", " cpu us", "<=", 1 / 8, None),
    Goal("java-consumer-", " msg/s", ">=", 1.3, 1),
    Goal("pull-", " msg/s", ">=", 2, 1),
    Goal("sync-64-", " msg/s", ">=", 2, 1.3),
    Goal("", " p99 ms", "<=", 0.5, 1),
    Goal("cost at ", " / at 64", "±", 0.15, 0.25),
    Goal("peak RSS MiB", "", "<=", 1 / 20, 1 / 20),
    Goal("start", " s", "<=", 0.3, 0.3),
)
COSTS = ((1_000, 64), (10_000, 64))  # numbers of queues whose CPU times per message are compared


def with_costs(rounds: Rounds) -> Rounds:
    """Return the rounds with the ratios of costs for many queues to those for few, round by round."""
    return {server: {**figures, **_costs(figures)} for server, figures in rounds.items()}


def _costs(figures: dict[str, list[float]]) -> dict[str, list[float]]:
    costs = {}
    for many, few in COSTS:
        names = [f"queues-{queues} cpu us" for queues in (many, few)]
        if all(name in figures for name in names):
            pairs = zip(*(figures[name] for name in names), strict=True)
            costs[f"cost at {many:,} queues / at {few}"] = [cost / base for cost, base in pairs]
    return costs


def summarize(rounds: Rounds) -> dict[str, dict[str, Any]]:
    """Return median, spread, ratio and expectation of each figure and server, in the order of the first server's figures."""
    names = dict.fromkeys(name for figures in rounds.values() for name in figures)
    return {
        name: _summary(name, {server: by_name.get(name, []) for server, by_name in rounds.items()}) for name in names
    }


def _summary(name: str, rounds: dict[str, list[float]]) -> dict[str, Any]:
    summary: dict[str, Any] = {server: _median(values) for server, values in rounds.items() if values}
    java = summary.get(JAVA, {}).get("median")
    for server in OURS:
        if server in summary:
            summary[server] |= judge(name, server, summary[server]["median"], java)
    return summary


def _median(values: list[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "rounds": values}


def judge(name: str, server: str, median: float, java: float | None) -> dict[str, Any]:
    """Return the ratio to Java, what is expected, and whether it is reached; what is not there is missing."""
    verdict: dict[str, Any] = {}
    ratio = median / java if java else None
    if ratio is not None:
        verdict["ratio"] = ratio
    goal = next((goal for goal in GOALS if name.startswith(goal.begin) and name.endswith(goal.end)), None)
    bound = getattr(goal, server) if goal else None
    if goal is None or bound is None:
        return verdict
    if goal.sign == "±":
        return {**verdict, "expected": f"1 ± {bound:g}", "reached": abs(median - 1) <= bound}
    if ratio is None:
        return verdict
    return {
        **verdict,
        "expected": f"{goal.sign} {bound_text(bound)}",
        "reached": ratio >= bound if goal.sign == ">=" else ratio <= bound,
    }


def bound_text(bound: float) -> str:
    """Return a bound as people write it: 1/8 instead of 0.125."""
    inverse = 1 / bound
    return f"1/{inverse:.0f}" if bound < 0.2 and abs(inverse - round(inverse)) < 1e-9 else f"{bound:g}"


def text_table(result: dict[str, Any]) -> str:
    """Return all figures as text."""
    servers = [server for server in (*OURS, JAVA) if server in result["servers"]]
    head = "".join(f"{server:>13}" for server in servers)
    ours = [server for server in OURS if server in servers]
    ratios = "".join(f"{server + ':java':>13} {'expected':>9} {'':5}" for server in ours)
    lines = [f"{'':32}{head}{ratios}   spread {' | '.join(servers)}"]
    for name, figure in result["figures"].items():
        medians = "".join(_cell(figure.get(server), "median", 13, ",.2f") for server in servers)
        verdicts = "".join(_verdict(figure.get(server, {})) for server in ours)
        spread = " | ".join(_spread(figure[server]) for server in servers if server in figure)
        lines.append(f"{name:32}{medians}{verdicts}   {spread}")
    return "\n".join(lines)


def _cell(values: dict[str, Any] | None, name: str, width: int, form: str) -> str:
    return f"{values[name]:{width}{form}}" if values and name in values else " " * width


def _verdict(values: dict[str, Any]) -> str:
    short = "" if values.get("reached", True) else "SHORT"
    return f"{_cell(values, 'ratio', 13, '.2f')} {values.get('expected', ''):>9} {short:5}"


def _spread(values: dict[str, Any]) -> str:
    return f"{values['least']:,.1f}…{values['most']:,.1f}"

"""The tables of docs/performance.md, from the result of `broker.py`. Pure functions. A test compares page and result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from figures import JAVA, OURS

BEGIN = "<!-- figures: written by benches/broker.py --page, not by hand -->"
END = "<!-- end of figures -->"
TITLES = {"native": "native", "python": "Python", JAVA: "Java 4.9.4"}

# Load, what the row says, the figure of its rate.
ROWS = (
    ("pipelined-128", "pipelined, 128 B, 4 queues", "msg/s"),
    ("pipelined-1024", "pipelined, 1 KB, 4 queues", "msg/s"),
    ("queues-1", "pipelined, 128 B, 1 queue", "msg/s"),
    ("queues-64", "64 queues", "msg/s"),
    ("queues-1000", "1,000 queues", "msg/s"),
    ("queues-10000", "10,000 queues, until readable", "readable/s"),
    ("java-64-128", "Java producer, 64 threads, 128 B", "msg/s"),
    ("java-64-1024", "Java producer, 64 threads, 1 KB", "msg/s"),
    ("java-1-128", "Java producer, 1 thread, 128 B", "msg/s"),
    ("java-1-1024", "Java producer, 1 thread, 1 KB", "msg/s"),
    ("pull-128", "backlog read, 128 B", "msg/s"),
    ("pull-1024", "backlog read, 1 KB", "msg/s"),
    ("pull-writer-128", "backlog read next to 10,000 writes/s, 128 B", "msg/s"),
    ("pull-writer-1024", "backlog read next to 10,000 writes/s, 1 KB", "msg/s"),
    ("java-consumer-128", "Java consumer, backlog, 128 B", "msg/s"),
    ("send-with-reader", "pipelined next to a reader, 128 B", "msg/s"),
    ("sync-1-128", "synchronous flush, 1 in flight", "msg/s"),
    ("sync-64-128", "synchronous flush, 64 in flight, 128 B", "msg/s"),
    ("sync-64-1024", "synchronous flush, 64 in flight, 1 KB", "msg/s"),
    ("sync-1024-128", "synchronous flush, 1,024 in flight", "msg/s"),
    ("keys", "queries by key", "query/s"),
)
OTHER_ROWS = (
    ("peak RSS MiB", "peak resident memory, MiB", ",.0f"),
    ("RSS without files MiB", "of it in the end without mapped files, MiB", ",.0f"),
    ("start s", "start to first accepted message, s", ".2f"),
    ("cost at 1,000 queues / at 64", "CPU time per message at 1,000 queues / at 64", ".2f"),
    ("cost at 10,000 queues / at 64", "CPU time per message at 10,000 queues / at 64", ".2f"),
)
IDLE_ROWS = (
    ("full-load msg/s", "messages/s", ",.0f"),
    ("full-load busiest thread %", "busiest thread of the broker, % of a core", ".0f"),
    ("full-load second thread %", "second thread", ".0f"),
    ("full-load all threads %", "all threads", ".0f"),
    ("full-load load program %", "load program", ".0f"),
    ("full-load idle cores", "idle cores of the machine", ".2f"),
)

Result = dict[str, Any]
Table = list[list[str]]


def replace_tables(text: str, result: Result | None) -> str:
    """Return a page with the tables of a result between its marks."""
    return replace_between(text, BEGIN, END, tables(result))


def replace_between(text: str, begin: str, end: str, content: str) -> str:
    """Return a page with other content between two marks."""
    before, first, rest = text.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise SystemExit(
            f"The page has no lines {begin!r} and {end!r}: expected both, the tables are written between them."
        )
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def tables(result: Result | None) -> str:
    """Return all tables as Markdown."""
    if result is None:
        return "No result is stored yet: run `python benches/broker.py` as described below."
    sections = (
        ("", setting(result)),
        ("### Rates", markdown(rate_rows(result))),
        ("### Latency and CPU time", markdown(cost_rows(result))),
        ("### Memory, start, many queues", markdown(other_rows(result))),
        (
            "### What one process leaves idle",
            markdown(plain_rows(result, IDLE_ROWS, "4 connections, 64 in flight each")),
        ),
        ("### Where the time of a send goes", markdown(step_rows(result))),
    )
    return "\n\n".join(part for title, content in sections if content for part in (title, content) if part)


def setting(result: Result) -> str:
    """Return a paragraph about machine, versions and time of a measurement."""
    machine, versions = result["machine"], result["versions"]
    rounds = "1 round" if result["rounds"] == 1 else f"{result['rounds']} rounds"
    lines = [
        f"Measured {result['measured'][:10]}, {rounds}, {result['sizes']['seconds']:g} s per measurement; medians, in parentheses"
        " the range. Bold ratios miss the expected value.",
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['kernel']},"
        f" {machine['file_system']}; load average before the start: {machine['load_average_before']}.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
        *(f"{TITLES[server]} is missing: {reason}." for server, reason in result["skipped"].items()),
        *warm_up_lines(result),
    ]
    return "\n".join(f"- {line}" for line in lines)


def warm_up_lines(result: Result) -> Iterable[str]:
    """Describe the warm-up of the Java broker."""
    for kind, windows in result["warm_up"].get(JAVA, {}).items():
        if windows:
            rates = ", ".join(f"{rate:,.0f}" for rate, _ in windows)
            flush = {"async": "asynchronous", "sync": "synchronous"}[kind]
            yield (
                f"Warm-up of Java, {flush} flush, messages/s in windows of {result['warm_up_window_s']:g} s: {rates};"
                f" in the last one its compiler used {windows[-1][1]:.0%} of a core."
            )


def servers_of(result: Result) -> list[str]:
    return [server for server in (*OURS, JAVA) if server in result["servers"]]


def rate_rows(result: Result) -> Table:
    """Return rates with spread, and the ratios to Java with what is expected."""
    servers = servers_of(result)
    ours = [server for server in OURS if server in servers]
    head = ["messages/s", *(TITLES[server] for server in servers)]
    head += [text for server in ours for text in (f"{TITLES[server]} : Java", "expected")]
    rows = [head]
    for load, label, unit in ROWS:
        figure = result["figures"].get(f"{load} {unit}")
        if figure is None:
            continue
        rates = [with_spread(figure.get(server)) for server in servers]
        verdicts = [text for server in ours for text in verdict(figure.get(server, {}))]
        rows.append([label, *rates, *verdicts])
    return rows


def cost_rows(result: Result) -> Table:
    """Return latencies and CPU times, each `native / Python / Java`."""
    servers = servers_of(result)
    ours = [server for server in OURS if server in servers]
    names = " / ".join(TITLES[server] for server in servers)
    ratios = [f"p99 {TITLES[server]} : Java" for server in ours]
    rows = [[names, "p50, ms", "p99, ms", *ratios, "broker CPU per message, µs"]]
    for load, label, _ in ROWS:
        p50, p99, cpu = (result["figures"].get(f"{load} {unit}") for unit in ("p50 ms", "p99 ms", "cpu us"))
        if p99 is None and cpu is None:
            continue
        verdicts = [marked_ratio((p99 or {}).get(server, {})) for server in ours]
        rows.append([label, triple(p50, servers), triple(p99, servers), *verdicts, triple(cpu, servers)])
    return rows


def other_rows(result: Result) -> Table:
    """Return memory, start time and cost with many queues, with ratios where they mean something."""
    servers = servers_of(result)
    ours = [server for server in OURS if server in servers]
    rows = [["", *(TITLES[server] for server in servers), *(f"{TITLES[server]} : Java, expected" for server in ours)]]
    for name, label, form in OTHER_ROWS:
        figure = result["figures"].get(name)
        if figure is None:
            continue
        medians = [format(figure[server]["median"], form) if server in figure else "" for server in servers]
        verdicts = []
        for server in ours:
            values = figure.get(server, {})
            if name.startswith("cost"):  # a ratio by itself
                text = expected(values)
                verdicts.append(text if values.get("reached", True) else f"**missed**: {text}")
            else:
                verdicts.append(", ".join(text for text in verdict(values) if text))
        rows.append([label, *medians, *verdicts])
    return rows


def plain_rows(result: Result, wanted: Iterable[tuple[str, str, str]], title: str) -> Table:
    servers = servers_of(result)
    rows = [[title, *(TITLES[server] for server in servers)]]
    for name, label, form in wanted:
        figure = result["figures"].get(name)
        if figure is not None:
            rows.append([label, *(format(figure[s]["median"], form) if s in figure else "" for s in servers)])
    return rows


def step_rows(result: Result) -> Table:
    """Return the CPU time of the steps of a send."""
    steps: dict[str, dict[str, float]] = result["steps"]
    names = dict.fromkeys(name for by_name in steps.values() for name in by_name)
    rows = [["µs per send of 128 B, in process, without sockets", *(TITLES[server] for server in steps)]]
    for name in names:
        rows.append([name, *(f"{by_name[name]:.2f}" if name in by_name else "" for by_name in steps.values())])
    rows.append(["all", *(f"{sum(by_name.values()):.2f}" for by_name in steps.values())])
    return rows if names else rows[:1]


def with_spread(values: dict[str, Any] | None) -> str:
    if not values:
        return ""
    return f"{values['median']:,.0f} ({values['least']:,.0f}–{values['most']:,.0f})"


def verdict(values: dict[str, Any]) -> list[str]:
    """Return the ratio to Java, bold if it misses what is expected, and the expectation."""
    return [marked_ratio(values), expected(values)]


def expected(values: dict[str, Any]) -> str:
    text: str = values.get("expected", "")
    return text.replace(">=", "≥").replace("<=", "≤")


def marked_ratio(values: dict[str, Any]) -> str:
    if "ratio" not in values:
        return ""
    ratio = values["ratio"]
    text = f"1/{1 / ratio:.0f}" if 0 < ratio < 0.1 else f"{ratio:.2f}"
    return text if values.get("reached", True) else f"**{text}**"


def triple(figure: dict[str, Any] | None, servers: list[str]) -> str:
    if figure is None:
        return ""
    return " / ".join(short(figure[server]["median"]) if server in figure else "–" for server in servers)


def short(number: float) -> str:
    """Return a number with about three significant digits."""
    digits = 0 if number >= 100 else 1 if number >= 10 else 2
    return f"{number:,.{digits}f}"


def markdown(rows: Table) -> str:
    """Return a Markdown table; empty without a row below its head."""
    if len(rows) < 2:
        return ""
    head, *body = rows
    lines = [head, ["---", *("---:" for _ in head[1:])], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

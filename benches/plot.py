"""The plot of README.md and docs/performance.md, from the result of `broker.py`. A test compares plot and result."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from figures import JAVA
from page import TITLES, Result

FILE = "pictures/performance.svg"  # next to docs/performance.md

COLOURS = {"native": "#0f6b6b", "python": "#5fa8a8", JAVA: "#9aa3ad"}
WIDTH, PANELS_PER_ROW = 900, 2
PANEL_HEIGHT, HEAD = 104, 58
BAR_HEIGHT, BAR_STEP, BAR_LEFT, BAR_RIGHT, VALUE_WIDTH = 16, 21, 84, 14, 76
STYLE = "text { font: 13px sans-serif; fill: #24292f } .title { font-weight: bold } .note { fill: #57606a }"


class Panel(NamedTuple):
    """A figure of each server, drawn as bars with a scale of their own."""

    figure: str
    title: str
    digits: int = 0


PANELS = (
    Panel("pipelined-128 msg/s", "Sends of 128 B, 128 in flight, per second"),
    Panel("pipelined-128 p99 ms", "99th percentile of these sends, ms (less is better)", 2),
    Panel("java-64-128 msg/s", "Sends of a Java producer, 64 threads, per second"),
    Panel("sync-64-128 msg/s", "Sends flushed to disk, 64 in flight, per second"),
    Panel("pull-128 msg/s", "Messages read from a backlog, per second"),
    Panel("RSS without files MiB", "Memory without mapped files, MiB (less is better)"),
)


def plot(result: Result) -> str:
    """Return the figures of all brokers as SVG."""
    rows = -(-len(PANELS) // PANELS_PER_ROW)
    height = HEAD + rows * PANEL_HEIGHT
    machine = result["machine"]
    note = f"Same machine, same loads: {machine['processor']}, {machine['cores']} cores; medians, {result['measured'][:10]}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Brokers compared: Ariane native, Ariane in Python, Java 4.9.4</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="14" y="24" class="title">Ariane (native and Python kernels) and Apache RocketMQ 4.9.4 (Java)</text>',
        f'<text x="14" y="42" class="note">{escape(note)}</text>',
    ]
    for number, panel in enumerate(PANELS):
        row, column = divmod(number, PANELS_PER_ROW)
        lines += _panel(panel, result, column * WIDTH // PANELS_PER_ROW, HEAD + row * PANEL_HEIGHT)
    return "\n".join([*lines, "</svg>", ""])


def _panel(panel: Panel, result: Result, left: int, top: int) -> list[str]:
    values = {server: figures["median"] for server, figures in result["figures"][panel.figure].items()}
    scale = (WIDTH // PANELS_PER_ROW - BAR_LEFT - BAR_RIGHT - VALUE_WIDTH) / max(values.values())
    lines = [f'<text x="{left + 14}" y="{top + 18}" class="title">{escape(panel.title)}</text>']
    for number, server in enumerate(server for server in COLOURS if server in values):
        y, length = top + 28 + number * BAR_STEP, max(1.0, values[server] * scale)
        x, baseline = left + BAR_LEFT, y + BAR_HEIGHT - 4
        lines += [
            f'<text x="{x - 8}" y="{baseline}" text-anchor="end">{TITLES[server]}</text>',
            f'<rect x="{x}" y="{y}" width="{length:.1f}" height="{BAR_HEIGHT}" fill="{COLOURS[server]}"/>',
            f'<text x="{x + length + 6:.1f}" y="{baseline}">{values[server]:,.{panel.digits}f}</text>',
        ]
    return lines

"""The tables of docs/metrics.md, from the declarations of the metrics."""

from __future__ import annotations

import re

from ariane.metrics.families import MetricTable

_MARKED = r"(<!-- metrics: {name} -->\n).*?(<!-- end -->\n)"


def metric_rows(table: MetricTable) -> str:
    """Return the metrics as a table of Markdown."""
    lines = ["| metric | type | unit | labels | meaning |", "|---|---|---|---|---|"]
    for metric in table:
        labels = ", ".join(metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"


def update_page(page: str, tables: dict[str, MetricTable]) -> str:
    """Return a page with the rows between its marks `<!-- metrics: NAME -->` and `<!-- end -->` replaced.

    Raises:
        ValueError: the page has no mark for a table.
    """
    for name, table in tables.items():
        pattern = _MARKED.format(name=re.escape(name))
        if not re.search(pattern, page, re.S):
            raise ValueError(f"Missing mark <!-- metrics: {name} --> … <!-- end -->")
        rows = metric_rows(table)
        page = re.sub(pattern, lambda match, rows=rows: match[1] + rows + match[2], page, flags=re.S)  # type: ignore[misc]
    return page

"""Small curves without axes, drawn on the server: a list may have hundreds of them."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH, HEIGHT = 100, 24
SPAN_MS = 3_600_000  # the width
MARGIN = 1.5  # room for the width of the line


def spark_path(points: Sequence[tuple[int, float | None]]) -> str:
    """Return the path of an SVG curve in a box of WIDTH × HEIGHT. Unknown values are gaps; the baseline is 0.

    The box is the hour before the last point, so that the curves of a list can be compared, and those of a new console are short.

    Args:
        points: Time and value, oldest first.
    """
    present = [value for _, value in points if value is not None]
    if len(present) < 2:
        return ""
    last_ms, top = points[-1][0], max(*present, 0.0) or 1.0
    parts = []
    is_drawing = False
    for ms, value in points:
        if value is not None:
            x = WIDTH * max(0.0, 1 - (last_ms - ms) / SPAN_MS)
            y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * max(0.0, value) / top
            parts.append(f"{'L' if is_drawing else 'M'}{x:.1f} {y:.1f}")
        is_drawing = value is not None
    return "".join(parts)

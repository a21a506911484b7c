"""Time options of commands."""

from __future__ import annotations

import pytest

from ariane.cli.options.time_options import parse_time
from ariane.errors import ConfigError

NOW_MS = 1_700_000_040_000  # 2023-11-14T22:14 in UTC


@pytest.mark.parametrize(
    ("said", "before_ms"),
    [
        ("30s", 30_000), ("10m", 600_000), ("1.5h", 5_400_000), ("2d", 172_800_000),
        ("2023-11-14T22:13", 60_000), ("2023-11-14T23:13+01:00", 60_000), ("2023-11-14", 22 * 3_600_000 + 14 * 60_000),
    ],
)  # fmt: skip
def test_a_time_option_accepts_a_duration_or_a_timestamp(said: str, before_ms: int) -> None:
    assert parse_time(said, NOW_MS, "--since") == NOW_MS - before_ms


@pytest.mark.parametrize("said", ["10", "m", "-1m", "1w", "9999999d", "yesterday", ""])
def test_an_invalid_time_is_reported_with_the_option(said: str) -> None:
    with pytest.raises(ConfigError, match="--until"):
        parse_time(said, NOW_MS, "--until")

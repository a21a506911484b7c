"""Times and durations of forms, delays and properties of test messages."""

from __future__ import annotations

from datetime import timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ariane.console.areas.access.login import LoginForm
from ariane.console.areas.messages.message_sends import parse_delay, parse_properties
from ariane.console.web.form_fields import TIME_END_MS, parse_duration_ms, parse_time_ms, parse_time_range
from ariane.errors import UsageError

NOW_MS = 1_700_000_000_000
CHINA = timezone(timedelta(hours=8))


def test_times_are_durations_before_now_dates_or_milliseconds() -> None:
    assert parse_time_ms("15m", NOW_MS, "time") == NOW_MS - 900_000
    assert parse_time_ms(" 1.5h ", NOW_MS, "time") == NOW_MS - 5_400_000
    assert parse_time_ms("1970-01-02", NOW_MS, "time") == 86_400_000
    assert parse_time_ms("1970-01-02T08:00", NOW_MS, "time", zone=CHINA) == 86_400_000
    assert parse_time_ms("1970-01-02T01:00:00+01:00", NOW_MS, "time", zone=CHINA) == 86_400_000
    assert parse_time_ms(str(NOW_MS), 0, "time") == NOW_MS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "-5m",
        "5 minutes",
        "2026-13-01",
        "1969-12-31",
        "60",
        "٣m",
        "1e9s",
        "999999999999999",
        "9999-12-31",
    ],
)
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="time"):
        parse_time_ms(text, NOW_MS, "time")


def test_a_range_is_of_times_in_the_zone_of_the_reader() -> None:
    begin_ms, day_ms = 86_400_000, 86_400_000
    assert parse_time_range("1970-01-02T08:00", "1970-01-03T08:00", NOW_MS, zone=CHINA) == (begin_ms, begin_ms + day_ms)
    assert parse_time_range("", " ", NOW_MS) == (None, None)
    for since, until in (("1h", "2h"), ("1h", "1h")):
        with pytest.raises(UsageError, match="since = .* specify an earlier time"):
            parse_time_range(since, until, NOW_MS)


@given(st.text(max_size=30))
def test_any_text_is_a_time_or_a_usage_error(text: str) -> None:
    try:
        assert 0 <= parse_time_ms(text, NOW_MS, "time") < TIME_END_MS
    except UsageError as error:
        assert error.key == "time"


def test_a_duration_is_positive() -> None:
    assert parse_duration_ms("2d", "due") == 172_800_000
    with pytest.raises(UsageError, match="due = '0s': expected a positive number"):
        parse_duration_ms("0s", "due")


def test_a_delay_is_a_level_a_duration_or_a_time() -> None:
    assert parse_delay("", NOW_MS) == (0, 0)
    assert parse_delay("3", NOW_MS) == (3, 0)
    assert parse_delay("90s", NOW_MS) == (0, NOW_MS + 90_000)
    assert parse_delay("2030-01-01", NOW_MS) == (0, 1_893_456_000_000)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "2020-01-01", "0s"])
def test_other_delays_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="delay"):
        parse_delay(text, NOW_MS)


def test_properties_are_lines() -> None:
    assert parse_properties(["color = red", "", "empty=", "a=b=c"]) == {"color": "red", "empty": "", "a": "b=c"}


@pytest.mark.parametrize("line", ["color", "=red", "a=1"])
def test_other_properties_are_refused(line: str) -> None:
    with pytest.raises(UsageError, match="properties"):
        parse_properties(["a=0", line])


def test_texts_that_cannot_be_encoded_are_refused() -> None:
    LoginForm(name="中", password="😀")
    with pytest.raises(ValidationError, match="surrogates") as raised:
        LoginForm(name="ann", password="\ud83d")
    assert "input_value" not in str(raised.value)

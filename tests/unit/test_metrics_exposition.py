"""Text of metrics: read back by prometheus-client's parsers in both formats."""

from __future__ import annotations

from math import inf, nan

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ariane.metrics.families import Family, Metric, cumulative
from ariane.metrics.serving import exposition, process_metrics
from ariane.metrics.serving.endpoint import parse_request

LAG = Metric("ariane_lag", "gauge", 'Lag of a "group".', ("group", "topic"))
SENT = Metric("ariane_sent_total", "counter", "Messages sent\nor \\ lost.")
TIMES = Metric("ariane_wait_seconds", "histogram", "Waits.", ("broker",))


def text(*families: Family, is_openmetrics: bool = False) -> str:
    body = "".join(exposition.encode(families, is_openmetrics=is_openmetrics))
    return body + exposition.END if is_openmetrics else body


def samples(body: str, *, is_openmetrics: bool) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    parse = parse_openmetrics if is_openmetrics else parse_text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(body)
        for sample in family.samples
    }


@pytest.mark.parametrize("is_openmetrics", [False, True])
def test_both_formats_are_valid(is_openmetrics: bool) -> None:
    odd = 'a"b\\c\nd%s{}'
    histogram = cumulative((0.1, 0.5, 1.0), (3, 0, 2, 1), 4.5, {0.1, 1.0})
    body = text(
        (LAG, [(("G", odd), 5), (("G", "%RETRY%G"), 0)]),
        (SENT, [((), 7)]),
        (TIMES, [(("b",), histogram)]),
        is_openmetrics=is_openmetrics,
    )
    assert samples(body, is_openmetrics=is_openmetrics) == {
        ("ariane_lag", frozenset({("group", "G"), ("topic", odd)})): 5,
        ("ariane_lag", frozenset({("group", "G"), ("topic", "%RETRY%G")})): 0,
        ("ariane_sent_total", frozenset()): 7,
        ("ariane_wait_seconds_bucket", frozenset({("broker", "b"), ("le", "0.1")})): 3,
        ("ariane_wait_seconds_bucket", frozenset({("broker", "b"), ("le", "1.0")})): 5,
        ("ariane_wait_seconds_bucket", frozenset({("broker", "b"), ("le", "+Inf")})): 6,
        ("ariane_wait_seconds_sum", frozenset({("broker", "b")})): 4.5,
        ("ariane_wait_seconds_count", frozenset({("broker", "b")})): 6,
    }
    parse = parse_openmetrics if is_openmetrics else parse_text
    kinds = {family.name: (family.type, family.documentation) for family in parse(body)}
    assert kinds["ariane_sent"] == ("counter", "Messages sent\nor \\ lost.")
    assert kinds["ariane_lag"] == ("gauge", 'Lag of a "group".')


def test_a_metric_without_samples_is_omitted() -> None:
    assert text((LAG, [])) == ""


def test_large_families_come_in_slices_with_one_head() -> None:
    count = 3 * exposition.SLICE
    parts = list(
        exposition.encode([(LAG, [((f"G{number}", "T"), number) for number in range(count)])], is_openmetrics=False)
    )
    assert len(parts) > 2
    assert max(part.count("\n") for part in parts) <= exposition.SLICE + 2
    assert "".join(parts).count("# TYPE") == 1
    assert len(samples("".join(parts), is_openmetrics=False)) == count


def test_values() -> None:
    assert [exposition.format_value(value) for value in (3, 0.25, inf, -inf, nan, 1e21)] == [
        "3", "0.25", "+Inf", "-Inf", "NaN", "1e+21",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("accept", "is_openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4;q=0.3,*/*;q=0.2", False),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3", True),
        ("application/openmetrics-text; version=1.0.0; escaping=allow-utf-8", True),
    ],
)
def test_the_accept_header_selects_the_format(accept: str, is_openmetrics: bool) -> None:
    chosen, content_type = exposition.negotiate(accept)
    assert chosen == is_openmetrics
    assert content_type.startswith(
        "application/openmetrics-text; version=1.0.0" if chosen else "text/plain; version=0.0.4"
    )


def test_the_process_is_described_in_both_formats() -> None:
    plain = samples(process_metrics.text(is_openmetrics=False), is_openmetrics=False)
    strict = samples(process_metrics.text(is_openmetrics=True) + exposition.END, is_openmetrics=True)
    assert {name for name, _ in plain} == {name for name, _ in strict}
    assert plain["process_resident_memory_bytes", frozenset()] > 1_000_000


def test_requests_are_parsed() -> None:
    request = parse_request(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nX-Prometheus-Scrape-Timeout-Seconds: 7.5\r\n\r\n")
    assert (request.method, request.path, request.scrape_timeout_s) == ("GET", "/metrics?x=1", 7.5)
    assert (
        parse_request(b"GET / HTTP/1.0\r\nX-Prometheus-Scrape-Timeout-Seconds: soon\r\n\r\n").scrape_timeout_s is None
    )
    for head in (b"GET /metrics\r\n\r\n", b"\x16\x03\x01\x02\r\n\r\n", b"GET / HTTP/2\r\n\r\n"):
        with pytest.raises(ValueError, match="Invalid request line"):
            parse_request(head)

"""Text of metrics: Prometheus text 0.0.4 and OpenMetrics 1.0, in slices.

A scrape of a broker may have 200,000 series. The text is therefore produced in slices of SLICE samples, between which the caller
serves other requests: about a millisecond each. prometheus-client renders a whole registry at once, and takes a dictionary per
sample; it negotiates the format here, and renders the metrics of the process (`process_metrics`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf, isnan

from prometheus_client.exposition import choose_encoder

from ariane.metrics.families import Family, HistogramValue, Metric

SLICE = 200  # samples
_TO_ESCAPE = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
END = "# EOF\n"  # of OpenMetrics


def negotiate(accept: str) -> tuple[bool, str]:
    """Return whether an Accept header asks for OpenMetrics, and the content type of the response."""
    _, content_type = choose_encoder(accept)
    if content_type.startswith("application/openmetrics-text"):
        return True, "application/openmetrics-text; version=1.0.0; charset=utf-8"
    return False, "text/plain; version=0.0.4; charset=utf-8"


def encode(families: Iterable[Family], *, is_openmetrics: bool) -> Iterator[str]:
    """Yield the text of the families in slices, without the end mark of OpenMetrics. A metric without samples is omitted."""
    for metric, samples in families:
        lines = [_head(metric, is_openmetrics)]
        template = _template(metric.name, metric.labels)
        bucket, sum_, count = (
            _template(f"{metric.name}_{suffix}", (*metric.labels, *more))
            for suffix, more in (("bucket", ("le",)), ("sum", ()), ("count", ()))
        )
        is_empty = True
        for labels, value in samples:
            escaped = _escaped(labels)
            if isinstance(value, HistogramValue):
                lines += [bucket % (*escaped, format_value(float(le)), str(passed)) for le, passed in value.buckets]
                lines.append(sum_ % (*escaped, format_value(value.sum)))
                lines.append(count % (*escaped, str(value.buckets[-1][1])))
            else:
                lines.append(template % (*escaped, format_value(value)))
            is_empty = False
            if len(lines) >= SLICE:
                yield "".join(lines)
                lines = []
        if lines and not is_empty:
            yield "".join(lines)


def format_value(value: float) -> str:
    """Return a number as both formats write it."""
    if isinstance(value, int):
        return str(value)
    if isnan(value):
        return "NaN"
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    # The shortest text that reads back as the same number.
    return repr(value)


def _head(metric: Metric, is_openmetrics: bool) -> str:
    name = metric.name
    # OpenMetrics names the family without the suffix of its samples, Prometheus text with it.
    if is_openmetrics and metric.kind == "counter":
        name = name.removesuffix("_total")
    return f"# HELP {name} {metric.help.translate(_HELP_ESCAPES)}\n# TYPE {name} {metric.kind}\n"


def _template(name: str, labels: tuple[str, ...]) -> str:
    if not labels:
        return f"{name} %s\n"
    texts = ",".join(label + '="%s"' for label in labels)
    return name + "{" + texts + "} %s\n"


def _escaped(labels: tuple[str, ...]) -> tuple[str, ...]:
    # One look at all of them together: nearly no name of RocketMQ needs escapes.
    joined = "".join(labels)
    if "\\" in joined or '"' in joined or "\n" in joined:
        return tuple(label.translate(_TO_ESCAPE) for label in labels)
    return labels

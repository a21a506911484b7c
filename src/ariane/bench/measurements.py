"""Measurements of client processes, and their sum. Pure.

A latency is recorded in a histogram with logarithmic buckets (`ariane.tables.histogram`, the idea of HDR histograms): any
percentile is within 1 % of the exact value, however the histograms of several processes are merged. Minimum, maximum, sum and
count are exact. Times are readings of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

import msgspec

from ariane.errors import ArianeError, ReplyError
from ariane.protocol.codes import ResponseCode
from ariane.tables.histogram import bucket_index, merge_histograms, quantile


class LatencyHistogram(msgspec.Struct):
    """Latencies in ms."""

    counts: dict[int, int] = {}  # number of latencies per bucket
    count: int = 0  # number of latencies
    sum_ms: float = 0.0  # their sum
    min_ms: float = 0.0  # the shortest; 0 if there are none
    max_ms: float = 0.0  # the longest

    def record(self, ms: float) -> None:
        """Add a latency. Clocks of two processes may differ by microseconds: a negative one counts as 0."""
        ms = max(ms, 0.0)
        index = bucket_index(ms)
        self.counts[index] = self.counts.get(index, 0) + 1
        self.min_ms = min(ms, self.min_ms) if self.count else ms
        self.max_ms = max(ms, self.max_ms)
        self.sum_ms += ms
        self.count += 1

    def percentile(self, percent: float) -> float | None:
        """Return the latency that `percent` % of all latencies do not exceed; None without latencies."""
        value = quantile(self.counts, percent / 100)
        # The value of a bucket may be outside of what was recorded: never report more than the maximum.
        return None if value is None else min(max(value, self.min_ms), self.max_ms)

    @property
    def mean_ms(self) -> float | None:
        """Return the mean; None without latencies."""
        return self.sum_ms / self.count if self.count else None


def merge_latencies(histograms: Iterable[LatencyHistogram]) -> LatencyHistogram:
    present = [histogram for histogram in histograms if histogram.count]
    return LatencyHistogram(
        counts=merge_histograms(histogram.counts for histogram in present),
        count=sum(histogram.count for histogram in present),
        sum_ms=sum(histogram.sum_ms for histogram in present),
        min_ms=min((histogram.min_ms for histogram in present), default=0.0),
        max_ms=max((histogram.max_ms for histogram in present), default=0.0),
    )


class ErrorCount(msgspec.Struct):
    """Failures of one kind."""

    count: int = 0  # number of messages that failed
    example: str = ""  # text of the first failure


class Errors(msgspec.Struct):
    """Failures by kind: class of the error, or name of the broker's response code."""

    kinds: dict[str, ErrorCount] = {}  # failures by kind

    def record(self, error: BaseException, messages: int = 1) -> None:
        """Count the failure of some messages."""
        self.add(error_kind(error), str(error), messages)

    def add(self, kind: str, example: str, count: int) -> None:
        entry = self.kinds.setdefault(kind, ErrorCount(example=example))
        entry.count += count

    @property
    def count(self) -> int:
        """Return the number of failures of all kinds."""
        return sum(entry.count for entry in self.kinds.values())


def error_kind(error: BaseException) -> str:
    """Return the kind that an error is counted under."""
    if isinstance(error, ReplyError):
        names = {code.value: code.name for code in ResponseCode}
        return f"{names.get(error.code, 'code')} ({error.code})"
    return type(error).__name__ if isinstance(error, ArianeError) else f"unexpected {type(error).__name__}"


class Bitmap:
    """Set of small numbers: which messages of a sender were received. A million takes 125 kB."""

    def __init__(self, bits: bytes = b"") -> None:
        self._bits = bytearray(bits)

    def add(self, number: int) -> bool:
        """Add a number. Return whether it is new."""
        index, mask = number >> 3, 1 << (number & 7)
        if index >= len(self._bits):
            self._bits.extend(bytes(max(index + 1 - len(self._bits), len(self._bits))))
        is_new = not self._bits[index] & mask
        self._bits[index] |= mask
        return is_new

    def encode(self) -> str:
        """Return the set as text."""
        return base64.b64encode(bytes(self._bits).rstrip(b"\0")).decode()


def count_union(bitmaps: Iterable[str]) -> int:
    """Return how many numbers are in any of these encoded sets."""
    union = 0
    for text in bitmaps:
        union |= int.from_bytes(base64.b64decode(text), "little")
    return union.bit_count()


class WorkerReport(msgspec.Struct, kw_only=True):
    """What a client process measured."""

    role: str  # its role
    # Measured messages: acknowledged, written (one-way), received or answered. Warm-up is not included.
    messages: int = 0
    bytes: int = 0  # bytes of their bodies
    completed: int = 0  # the same with the warm-up
    first_s: float = 0.0  # when the first measured message was due or received; 0 without measured messages
    last_s: float = 0.0  # when the last one was complete
    # Send to acknowledgement, request to reply, or (consumers) send to reception.
    latency: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    errors: Errors = msgspec.field(default_factory=Errors)  # failed messages
    late_statuses: dict[str, int] = {}  # messages that were stored, but not flushed or replicated in time, by status
    received: dict[int, str] = {}  # mode both: the messages that were received, by the number of the sender
    duplicates: int = 0  # messages that this client received more than once

    def on_measured(self, start_s: float, end_s: float, size: int) -> None:
        """Count a measured message."""
        self.first_s = min(self.first_s, start_s) if self.messages else start_s
        self.last_s = max(self.last_s, end_s)
        self.messages += 1
        self.bytes += size


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of the clients of one role."""

    role: str  # the role
    clients: int  # number of clients
    messages: int  # measured messages
    completed: int  # the same with the warm-up
    seconds: float  # from the first measured message of any client to the last one of any client
    messages_per_s: float | None  # measured messages per second; None for fewer than two messages
    bytes_per_s: float | None  # bytes of bodies per second
    latency: LatencyHistogram  # all latencies
    errors: Errors  # all failures
    late_statuses: dict[str, int]  # stored messages whose flush or replication was late
    duplicates: int  # messages that were received more than once


def combine(reports: Iterable[WorkerReport]) -> Throughput:
    """Return the sum of the reports of one role, of at least one client."""
    all_reports = list(reports)
    measured = [report for report in all_reports if report.messages]
    messages = sum(report.messages for report in measured)
    first_s = min((report.first_s for report in measured), default=0.0)
    seconds = max((report.last_s for report in measured), default=0.0) - first_s
    is_measurable = messages > 1 and seconds > 0
    errors = Errors()
    late: dict[str, int] = {}
    for report in all_reports:
        for kind, entry in report.errors.kinds.items():
            errors.add(kind, entry.example, entry.count)
        for status, count in report.late_statuses.items():
            late[status] = late.get(status, 0) + count
    received = sum(len_of(report) for report in all_reports)
    union = sum(count_union(_bitmaps_of(all_reports, sender)) for sender in _senders(all_reports))
    return Throughput(
        role=all_reports[0].role,
        clients=len(all_reports),
        messages=messages,
        completed=sum(report.completed for report in all_reports),
        seconds=seconds,
        messages_per_s=messages / seconds if is_measurable else None,
        bytes_per_s=sum(report.bytes for report in measured) / seconds if is_measurable else None,
        latency=merge_latencies(report.latency for report in all_reports),
        errors=errors,
        late_statuses=late,
        duplicates=sum(report.duplicates for report in all_reports) + received - union,
    )


def unique_received(reports: Iterable[WorkerReport]) -> int:
    """Return how many different messages were received by any client (mode both)."""
    all_reports = list(reports)
    return sum(count_union(_bitmaps_of(all_reports, sender)) for sender in _senders(all_reports))


def len_of(report: WorkerReport) -> int:
    """Return how many different messages one client received (mode both)."""
    return sum(count_union([text]) for text in report.received.values())


def _senders(reports: Iterable[WorkerReport]) -> set[int]:
    return {sender for report in reports for sender in report.received}


def _bitmaps_of(reports: Iterable[WorkerReport], sender: int) -> list[str]:
    return [report.received[sender] for report in reports if sender in report.received]

"""Clients whose clocks have planted faults, their trace records, and the table `clocks` as plain Python computes it."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

CUT_MS, DRIFT_MS, DRIFT_PPM, TRIMMED_FROM, MINUTE_MS = 1, 12, 200, 10, 60_000
ClockKey = tuple[str, str | None, int]  # address, client, minute
SECONDS = 600  # of a simulation: as long as a time bucket
OUTLIERS = 0.01  # part of the records
FAULTS = ("none", "drift", "smear", "step", "suspended", "nat", "outliers", "mixed")


class Client(NamedTuple):
    """A client with a wrong clock.

    Attributes:
        address: Address of its connections.
        process: First part of its unique ids, in hex.
        offset_ms: Broker's clock - this client's, by the broker's clock.
        suspended: When its machine does nothing, ms.
        is_measured: Whether it measures its offset.
    """

    address: str
    process: str
    offset_ms: Callable[[float], float]
    suspended: tuple[float, float] = (0, 0)
    is_measured: bool = False

    def at(self, true_ms: float) -> int:
        """Return what its clock shows."""
        return math.floor(true_ms - self.offset_ms(true_ms))

    def awake(self, true_ms: float) -> float:
        """Return when something happens that is due at an instant."""
        return self.suspended[1] if self.suspended[0] <= true_ms < self.suspended[1] else true_ms

    @property
    def name(self) -> str | None:
        """The client in the table `clocks`; None if its address has one clock."""
        own = ".".join(str(int(self.process[first : first + 2], 16)) for first in range(0, 8, 2))
        return None if own == self.address else self.process


class Record(NamedTuple):
    """A trace record of a send, or of the start of a listener call. Times are ms.

    Attributes:
        client: Client that wrote it.
        message: Number of the message.
        true_ms: When it happened, by the broker's clock.
        said_ms: The same by the client's.
        cost_ms: Duration of a send as the client measured it; None for a call.
        stored_ms: When the broker stored the message.
        traced_ms: When the broker stored the trace.
    """

    client: Client
    message: int
    true_ms: float
    said_ms: int
    cost_ms: int | None
    stored_ms: int
    traced_ms: int

    @property
    def lower_ms(self) -> int:
        return self.stored_ms - self.said_ms - (self.cost_ms or 0) - CUT_MS

    @property
    def upper_ms(self) -> int:
        by_trace_ms = self.traced_ms - self.said_ms - max(0, self.cost_ms or 0) + CUT_MS
        return by_trace_ms if self.cost_ms is None else min(by_trace_ms, self.stored_ms - self.said_ms + CUT_MS)


class Clock(NamedTuple):
    """Bounds of a clock in a minute; None: unbounded."""

    lower_ms: int | None
    upper_ms: int | None
    messages: int
    discarded: int

    @property
    def is_agreed(self) -> bool:
        return self.lower_ms is None or self.upper_ms is None or self.lower_ms <= self.upper_ms


def simulate(fault: str, seed: int, messages: int | None = None) -> list[Record]:
    """Return the records of SECONDS of traffic between clients with a fault, in a random order."""
    chance = random.Random(f"{fault}-{seed}")
    clients = _clients(fault, chance)
    records = []
    for number in range(messages or chance.randint(60, 1200)):
        # Every other client only consumes: its bounds depend on the delays of deliveries and traces.
        sender, receiver = chance.choice(clients[::2]), chance.choice(clients)
        began = sender.awake(chance.uniform(0, SECONDS * 1000))
        stored = began + chance.expovariate(1 / 3)
        answered = sender.awake(stored + chance.expovariate(1 / 3))
        delivered = receiver.awake(stored + chance.expovariate(1 / 10))
        said, end, start = sender.at(began), sender.at(answered), receiver.at(delivered)
        if fault == "outliers" and chance.random() < OUTLIERS:
            end -= chance.randint(20, 500)  # the client paused between two readings of its clock
        if fault == "outliers" and chance.random() < OUTLIERS:
            start += chance.randint(-2_000, 2_000)
        traced = [chance.expovariate(1 / 3) + chance.uniform(0, 500) for _ in range(2)]
        sent_traced, call_traced = sender.awake(answered + traced[0]), receiver.awake(delivered + traced[1])
        cost = max(0, end - said)
        records.append(Record(sender, number, began, said, cost, math.floor(stored), math.floor(sent_traced)))
        records.append(Record(receiver, number, delivered, start, None, math.floor(stored), math.floor(call_traced)))
    chance.shuffle(records)
    return records


def _clients(fault: str, chance: random.Random) -> list[Client]:
    def steady(offset_ms: float, ppm: float = 0) -> Callable[[float], float]:
        return lambda true_ms: offset_ms + true_ms * ppm / 1_000_000

    def process(address: str) -> str:
        digits = "".join(f"{int(part):02X}" for part in address.split("."))
        return f"{digits}{chance.randrange(1 << 16):04X}{chance.randrange(1 << 32):08X}"

    addresses = [f"10.0.0.{number}" for number in range(1, 5)]
    offsets = [chance.uniform(-5_000, 5_000) for _ in addresses]
    ppm = {"drift": (-200, -100, 100, 200), "smear": (11.574, 11.574, -38.4, 61.6)}.get(fault, (0, 0, 0, 0))
    clocks = [steady(*pair) for pair in zip(offsets, ppm, strict=True)]
    plain = [Client(address, process(address), clock) for address, clock in zip(addresses, clocks, strict=True)]
    if fault == "step":
        return [client._replace(offset_ms=_stepped(client.offset_ms, chance)) for client in plain]
    if fault == "suspended":
        return [_suspended(client, chance) for client in plain]
    if fault == "nat":
        # Behind one address: machines, and containers with equal addresses. One client of the gateway itself.
        inner = ("192.168.0.1", "192.168.0.2", "172.17.0.2", "172.17.0.2", "10.0.0.9")
        differences = (chance.uniform(-30, 30), *offsets)
        return [Client("10.0.0.9", process(own), steady(ms)) for own, ms in zip(inner, differences, strict=True)]
    if fault == "mixed":
        # Measured clients of the same address, with wrong clocks: in containers with the network of their machine.
        return [Client("10.0.0.9", process("10.0.0.9"), steady(ms), is_measured=ms != 0) for ms in (0, 500, -500)]
    return plain


def _stepped(offset_ms: Callable[[float], float], chance: random.Random) -> Callable[[float], float]:
    """Return a clock that is set once, by as much as NTP services set clocks at once (they slew smaller differences)."""
    at_ms, by_ms = chance.uniform(0, SECONDS * 1000), chance.choice((-1, 1)) * chance.uniform(128, 5_000)
    return lambda true_ms: offset_ms(true_ms) + (by_ms if true_ms >= at_ms else 0)


def _suspended(client: Client, chance: random.Random) -> Client:
    """Return a client whose machine, and its clock, stops for some seconds; the clock is set some seconds later."""
    from_ms, for_ms, set_after_ms = chance.uniform(0, 500_000), chance.uniform(1_000, 60_000), chance.uniform(0, 30_000)
    until_ms = from_ms + for_ms

    def offset_ms(true_ms: float) -> float:
        if true_ms < from_ms or true_ms >= until_ms + set_after_ms:
            return client.offset_ms(true_ms)
        return client.offset_ms(true_ms) + min(true_ms, until_ms) - from_ms

    return client._replace(offset_ms=offset_ms, suspended=(from_ms, until_ms))


def clock_of(record: Record) -> ClockKey:
    return record.client.address, record.client.name, record.traced_ms // MINUTE_MS


def clocks_of(records: Iterable[Record]) -> dict[ClockKey, Clock]:
    """Return the table `clocks`."""
    by_message: dict[ClockKey, dict[int, tuple[int, int]]] = defaultdict(dict)
    for record in records:
        if not record.client.is_measured:
            intervals = by_message[clock_of(record)]
            lower_ms, upper_ms = intervals.get(record.message, (-(1 << 62), 1 << 62))
            intervals[record.message] = (
                max(lower_ms, record.lower_ms - DRIFT_MS),
                min(upper_ms, record.upper_ms + DRIFT_MS),
            )
    alone = {key: _vote([*intervals.values()]) for key, intervals in by_message.items()}
    by_clock: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for host, client, minute in sorted(alone, key=lambda key: key[2]):
        by_clock[host, client].append(minute)
    result = {}
    for (host, client), minutes in by_clock.items():
        for index, minute in enumerate(minutes):
            near = [alone[host, client, minute]]
            lowers, uppers = [near[0].lower_ms], [near[0].upper_ms]
            for other in minutes[max(0, index - 1) : index] + minutes[index + 1 : index + 2]:
                neighbor = alone[host, client, other]
                if neighbor.is_agreed and neighbor.lower_ms is not None and neighbor.upper_ms is not None:
                    drift_ms = math.ceil(abs(minute - other) * MINUTE_MS * DRIFT_PPM / 1_000_000)
                    lowers.append(neighbor.lower_ms - drift_ms)
                    uppers.append(neighbor.upper_ms + drift_ms)
            lower_ms = max(value for value in lowers if value is not None)
            upper_ms = min(value for value in uppers if value is not None)
            result[host, client, minute] = near[0]._replace(lower_ms=lower_ms, upper_ms=upper_ms)
    return result


def _vote(intervals: Sequence[tuple[int, int]]) -> Clock:
    """Return the bounds on which more than half of the messages agree, otherwise bounds that contradict each other.

    Of many messages the closest hundredth of the bounds is not used.
    """
    whole = [(lower_ms, upper_ms) for lower_ms, upper_ms in intervals if lower_ms <= upper_ms]
    lowers, uppers = sorted(low for low, _ in whole), sorted(high for _, high in whole)
    counts = {value: bisect_right(lowers, value) - bisect_left(uppers, value) for value in (*lowers, *uppers)}
    most = max(counts.values(), default=0)
    if most * 2 <= len(intervals):
        return Clock(
            max(low for low, _ in intervals), min(high for _, high in intervals), len(intervals), len(intervals)
        )
    best = [value for value, count in counts.items() if count == most]
    extreme = math.ceil(len(intervals) / 100) if len(intervals) >= TRIMMED_FROM else 0
    below, above = [low for low in lowers if low <= min(best)], [high for high in uppers if high >= max(best)]
    lower_ms, upper_ms = below[max(0, len(below) - 1 - extreme)], above[min(len(above) - 1, extreme)]
    discarded = sum(low > high or low > upper_ms or high < lower_ms for low, high in intervals)
    return Clock(lower_ms, upper_ms, len(intervals), discarded)


class Tally(NamedTuple):
    """How often bounds held: of the records of clients that do not measure, those whose time is corrected."""

    records: int = 0
    corrected: int = 0
    held: int = 0
    width_ms: int = 0

    def __add__(self, other: Tally) -> Tally:  # type: ignore[override]
        return Tally(*(one + two for one, two in zip(self, other, strict=True)))


def tally(records: Iterable[Record], clocks: dict[ClockKey, Clock]) -> Tally:
    """Compare the bounds with the true offsets. A record that contradicts the bounds itself is not corrected (`journeys`)."""
    total = Tally()
    for record in records:
        if record.client.is_measured:
            continue
        clock = clocks[clock_of(record)]
        assert clock.lower_ms is not None
        assert clock.upper_ms is not None
        is_outlier = record.lower_ms > clock.upper_ms or record.upper_ms < clock.lower_ms
        is_corrected = clock.is_agreed and not is_outlier
        offset_ms = record.client.offset_ms(record.true_ms)
        held = is_corrected and clock.lower_ms <= offset_ms <= clock.upper_ms
        width_ms = clock.upper_ms - clock.lower_ms if is_corrected else 0
        total += Tally(1, int(is_corrected), int(held), width_ms)
    return total

"""Clock offsets: whatever the delays, the drift and the steps of the client's clock are, the true offset is within the bounds."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ariane.client.instance.instants import Instant
from ariane.client.tracing.offset_estimate import DRIFT, STEP_MS, OffsetEstimate, OffsetSample
from ariane.model import clock_offset
from ariane.model.clock_offset import ClockOffset

START_MS = 1_700_000_000_000.0
PPM_MAX = DRIFT * 1_000_000 / 2 - 1  # of each clock


@dataclass
class Clocks:
    """True time in ms, and what the clocks of a client and a broker show at it."""

    client_ppm: float
    broker_ppm: float
    offset_ms: float
    now_ms: float = 0.0  # true time
    steps_ms: float = 0.0  # by which the client's wall clock was set so far

    def client_ms(self, at_ms: float) -> float:
        return START_MS + at_ms * (1 + self.client_ppm / 1e6) + self.steps_ms

    def broker_ms(self, at_ms: float) -> float:
        return START_MS + self.offset_ms + at_ms * (1 + self.broker_ppm / 1e6)

    def monotonic_s(self) -> float:
        return self.now_ms * (1 + self.client_ppm / 1e6) / 1000

    def instant(self) -> Instant:
        return Instant(int(self.client_ms(self.now_ms)), self.monotonic_s())

    def exchange(self, out_ms: float, in_ms: float, late_ms: float) -> OffsetSample:
        started = self.instant()
        stored_ms = int(self.broker_ms(self.now_ms + out_ms))
        self.now_ms += out_ms + in_ms
        cost_ms = self.instant().ms_since(started)
        self.now_ms += late_ms
        return OffsetSample(started.wall_ms, cost_ms, self.instant(), stored_ms)


DELAYS = st.one_of(st.floats(0, 3), st.floats(0, 3_000))
EXCHANGES = st.tuples(st.just("exchange"), DELAYS, DELAYS, st.floats(0, 30))
PAUSES = st.tuples(st.just("pause"), st.one_of(st.floats(0, 100), st.floats(0, 3_600_000)))
SIZES = st.floats(STEP_MS + 3, 100_000)
STEPS = st.tuples(st.just("step"), st.one_of(SIZES, SIZES.map(lambda size: -size)))
RECORDS = st.tuples(st.just("record"))
QUERIES = st.tuples(st.just("query"))
PPM = st.floats(-PPM_MAX, PPM_MAX)


@settings(max_examples=300, deadline=None)
@given(
    client_ppm=PPM,
    broker_ppm=PPM,
    offset_ms=st.floats(-100_000, 100_000),
    events=st.lists(st.one_of(EXCHANGES, PAUSES, STEPS, RECORDS, QUERIES), max_size=30),
)
@example(0.0, 0.0, 0.0, [("step", 13.0), ("record",), ("step", -13.0)])
@example(0.0, 0.0, 0.99, [("pause", 0.99), ("exchange", 0.0, 0.0, 0.0), ("record",), ("query",)])  # times are cut
def test_the_true_offset_is_always_within_the_bounds(client_ppm, broker_ppm, offset_ms, events):
    clocks = Clocks(client_ppm, broker_ppm, offset_ms)
    estimate = OffsetEstimate(clocks.instant())
    noticed_ms = 0.0  # `clocks.steps_ms` at the last reading
    written: list[tuple[float, float]] = []  # records: when, by the monotonic clock, and the true offset
    for kind, *values in [*events, ("exchange", 0.5, 0.5, 0.0), ("pause", 1.0), ("record",), ("query",)]:
        if kind == "exchange":
            if estimate.add(clocks.exchange(*values)):
                noticed_ms = clocks.steps_ms
        elif kind == "pause":
            clocks.now_ms += values[0]
        elif kind == "step":
            # Between two readings, a step that cancels another one is not seen.
            if abs(clocks.steps_ms + values[0] - noticed_ms) > STEP_MS + 2:
                clocks.steps_ms += values[0]
        elif kind == "record":
            offset = clocks.broker_ms(clocks.now_ms) - clocks.client_ms(clocks.now_ms)
            written.append((clocks.monotonic_s(), offset))
        else:
            noticed_ms = clocks.steps_ms
            for number, (since_s, _) in enumerate(written):
                bounds = estimate.bounds(clocks.instant(), since_s)
                for _, offset in written[number:]:
                    assert bounds is None or bounds.lower_ms <= offset <= bounds.upper_ms
    last_s = written[-1][0]
    final = estimate.bounds(clocks.instant(), last_s)
    assert final is not None and final.error_ms <= 4  # the last exchange took 1 ms


@given(st.dictionaries(st.from_regex(r"[0-9a-f.\[\]:]{1,40}", fullmatch=True), st.integers(-(10**9), 10**9)))
def test_the_text_of_offsets_is_read_again(bounds):
    offsets = {addr: ClockOffset(lower_ms, lower_ms + 3) for addr, lower_ms in bounds.items()}
    text = clock_offset.to_text(offsets.items())
    read = clock_offset.of_text(text)
    assert len(text) <= clock_offset.TEXT_MAX
    assert read == dict(list(offsets.items())[: len(read)])
    if len(read) < len(offsets):
        assert len(text) > clock_offset.TEXT_MAX - 70

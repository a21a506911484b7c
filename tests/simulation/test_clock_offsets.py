"""Clock offsets end to end in virtual time: clients whose clocks are wrong, a broker, and the timeline of the console."""

from __future__ import annotations

import pytest

import skewed_traffic as skewed
from ariane.console.areas.traces.live_steps import live_trace
from ariane.console.areas.traces.trace_sources import decode_carriers
from ariane.reports.trace_steps import StepKind


@pytest.mark.parametrize("seed", [1, 2])
def test_the_timeline_of_a_client_that_is_ahead_is_corrected_by_its_own_measurement(seed: int) -> None:
    traffic = skewed.skewed_traffic(seed)
    for group, ahead_ms in ((skewed.SELLERS, skewed.PRODUCER_AHEAD_MS), (skewed.GROUP, skewed.CONSUMER_AHEAD_MS)):
        (offset,) = traffic.offsets[group].values()
        assert set(traffic.offsets[group]) == {skewed.BROKER}
        assert offset.lower_ms <= -ahead_ms <= offset.upper_ms
        assert offset.error_ms <= 7  # half of the 4.5 ms of an exchange, the rounding of times, and 5 s of drift

    carried = decode_carriers(traffic.traces)
    assert len(traffic.sent_ms) == len(traffic.delivered_ms) == skewed.COUNT
    for message_id, sent_ms in traffic.sent_ms.items():
        # Without its stored copy, so that nothing but the measurement corrects the times.
        steps = live_trace(message_id, carried, []).steps
        assert [step.kind for step in steps] == [StepKind.SEND, StepKind.DELIVERY]
        for step, true_ms in zip(steps, (sent_ms, traffic.delivered_ms[message_id]), strict=True):
            assert step.error_ms is not None and step.error_ms <= 8
            assert abs(step.start_ms - true_ms) <= step.error_ms

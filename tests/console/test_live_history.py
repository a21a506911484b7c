"""History in memory, delay of slaves, and the CPU budget of polling: pure parts of the live cluster."""

from __future__ import annotations

import asyncio

from ariane.console.live.live_history import HistoryPoint, LiveHistory, Rates, group_key
from ariane.console.live.replication_delay import ReplicationDelay, ReplicationObserver
from ariane.console.live.request_pacing import CpuBudget
from ariane.testing.clock import FakeClock

G, H = group_key("G"), group_key("H")


def test_series_are_oldest_first_and_unknown_values_stay_unknown() -> None:
    history = LiveHistory(slots=3, slot_ms=10)
    for ms, lag in ((10, 1), (20, None), (30, 3), (40, 4)):
        assert history.record(ms, {G: Rates(lag=lag)})
    assert history.series(G, "lag") == [HistoryPoint(30, 3), HistoryPoint(40, 4)]
    history.record(50, {G: Rates(lag=None)})
    assert history.series(G, "lag") == [HistoryPoint(30, 3), HistoryPoint(40, 4), HistoryPoint(50, None)]


def test_values_within_a_slot_are_skipped() -> None:
    history = LiveHistory(slots=3, slot_ms=10)
    assert [history.record(ms, {G: Rates(lag=ms)}) for ms in (10, 15, 19, 20)] == [True, False, False, True]
    assert [point.ms for point in history.series(G, "lag")] == [10, 20]


def test_keys_come_and_go() -> None:
    history = LiveHistory(slots=4, slot_ms=1)
    history.record(1, {G: Rates(1.0, 2.0, 3)})
    history.record(2, {G: Rates(1.0, 2.0, 3), H: Rates(lag=7)})
    assert history.series(H, "lag") == [HistoryPoint(2, 7)]
    history.record(3, {H: Rates(lag=8)})
    assert history.series(G, "tps_in") == []
    history.record(4, {G: Rates(5.0)})
    assert history.series(G, "tps_in") == [HistoryPoint(4, 5)]


def test_the_delay_of_a_slave_is_the_time_since_its_master_had_as_much() -> None:
    observer = ReplicationObserver()
    for ms, end in ((0, 100), (10_000, 200), (20_000, 400)):
        observer.observe("a", ms, end)
    assert observer.delay("a", 20_000, 400) == ReplicationDelay(0, 0)
    assert observer.delay("a", 20_000, 450) == ReplicationDelay(0, 0)
    assert observer.delay("a", 20_000, 300) == ReplicationDelay(100, 5_000)
    assert observer.delay("a", 26_000, 200) == ReplicationDelay(200, 16_000)
    assert observer.delay("a", 20_000, 50) == ReplicationDelay(350, 20_000, is_minimum=True)
    assert observer.delay("b", 20_000, 50) is None


def test_an_idle_master_does_not_make_a_slave_look_late() -> None:
    observer = ReplicationObserver()
    for ms in range(0, 60_000, 5_000):
        observer.observe("a", ms, 100)
    observer.observe("a", 60_000, 200)
    # Until 55 s there was nothing to replicate.
    assert observer.delay("a", 60_000, 100) == ReplicationDelay(100, 5_000)


def test_a_new_log_starts_the_observation_again() -> None:
    observer = ReplicationObserver()
    observer.observe("a", 0, 500)
    observer.observe("a", 5_000, 10)
    assert observer.delay("a", 5_000, 5) == ReplicationDelay(5, 0, is_minimum=True)


class SpentCpu:
    """CPU time that the test spends."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_requests_wait_until_the_share_of_cpu_time_allows_them() -> None:
    cpu, clock = SpentCpu(), FakeClock(is_auto=True)
    budget = CpuBudget(share=0.1, burst_s=0.5, start_s=2.0, clock=clock, cpu_time=cpu)

    async def run() -> None:
        await budget.wait()
        cpu.seconds = 2.0
        await budget.wait()
        assert clock.elapsed_ms == 0  # the start balance was enough
        cpu.seconds = 2.3
        await budget.wait()
        assert 3_000 <= clock.elapsed_ms < 4_100
        clock.advance(1_000)  # saves not more than a burst
        await budget.wait()
        before = clock.elapsed_ms
        cpu.seconds += 1.0
        await budget.wait()
        assert 4_900 <= clock.elapsed_ms - before < 6_100

    asyncio.run(run())

"""Statistics of the broker: windows, lines, the schedule, put times, the log file. No socket, no sleep."""

from __future__ import annotations

import asyncio
import gzip
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest

from ariane.broker.stats import stats_log_format
from ariane.broker.stats.broker_stats import BrokerStats, PulledMessages, is_tool_group
from ariane.broker.stats.stats_items import (
    DAY,
    EMPTY_SNAPSHOT,
    HOUR,
    MINUTE,
    SIZE,
    LatestValues,
    StatsItem,
    StatsItemSet,
    StatsSnapshot,
)
from ariane.broker.stats.stats_journal import StatsLogFile
from ariane.broker.stats.stats_recorder import StatsRecorder
from ariane.broker.stats.stats_schedule import (
    ScheduledTask,
    StatsSchedule,
    next_hour_ms,
    next_midnight_ms,
    next_minute_ms,
)
from ariane.broker.stats.store_stats import FINE_BOUNDS_MS, LABELS, DailyTotals, StoreStats
from ariane.spark.read.source_options import SourceOptions
from ariane.testing.clock import FakeClock

PULL = PulledMessages(messages=32, size=6400, seconds=0.002, behind=177, late_ms=5)


def at(text: str, zone: timezone | ZoneInfo = UTC) -> int:  # type: ignore[valid-type]
    return round(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1000)


# --- items ---


def test_the_first_sample_is_preceded_by_a_zero_one_period_earlier() -> None:
    item = StatsItem()
    assert item.snapshot(MINUTE) == EMPTY_SNAPSHOT
    item.times, item.count, item.size = 2, 6, 600
    item.sample(MINUTE, 50_000)
    assert item.snapshot(MINUTE) == StatsSnapshot(6, 0.6, 2, 3.0)
    assert item.snapshot(MINUTE, SIZE) == StatsSnapshot(600, 60.0, 2, 300.0)
    assert item.snapshot(HOUR) == EMPTY_SNAPSHOT
    item.sample(HOUR, 50_000)
    assert item.snapshot(HOUR) == StatsSnapshot(6, 6 * 1000 / 600_000, 2, 3.0)


@pytest.mark.parametrize(("window", "kept"), [(MINUTE, 7), (HOUR, 7), (DAY, 25)])
def test_the_sampling_window_slides(window: object, kept: int) -> None:
    item = StatsItem()
    every = window.interval_ms  # type: ignore[attr-defined]
    for number in range(1, 100):
        item.times += 1
        item.count += number
        item.sample(window, number * every)  # type: ignore[arg-type]
    spans = kept - 1
    snapshot = item.snapshot(window)  # type: ignore[arg-type]
    assert snapshot.times == spans
    assert snapshot.sum == sum(range(100 - spans, 100))
    assert snapshot.tps == pytest.approx(snapshot.sum * 1000 / (spans * every))


def test_the_average_without_events_is_zero() -> None:
    item = StatsItem()
    item.count = 5  # a BROKER_ item: its times are never raised
    item.sample(MINUTE, 10_000)
    assert item.snapshot(MINUTE) == StatsSnapshot(5, 0.5, 0, 0.0)
    item.sample(MINUTE, 0)  # and a clock that stands still causes no division by zero
    assert item.snapshot(MINUTE).tps == 0.0


def test_the_number_of_items_is_bounded_and_the_overflow_is_counted() -> None:
    items = StatsItemSet("topic", items_max=2)
    for topic in ("A", "B", "C", "C", "A"):
        items.add(topic, 1, 10)
    assert [key for key, _ in items] == ["A", "B"]
    assert items.overflow_count == 2
    moments = LatestValues("queue", "topic", "group", items_max=1)
    moments.set("0@A@G", 1, 0)
    moments.set("0@B@G", 1, 0)
    moments.set("0@A@G", 7, 1)
    assert (moments.values(), moments.overflow_count) == ({"0@A@G": 7}, 1)


def test_an_item_without_events_for_a_day_is_removed() -> None:
    items = StatsItemSet("topic")
    items.add("silent", 1)
    items.add("alive", 1)
    for hour in range(26):
        for key, item in items:
            if key == "alive" and hour == 20:
                item.times += 1
            item.sample(DAY, hour * DAY.interval_ms)
        items.drop_idle()
        assert len(items) == (2 if hour < 24 else 1), hour
    assert items.get("alive") is not None


# --- counters ---


def test_every_event_is_recorded_under_its_item_names_and_keys() -> None:
    stats = BrokerStats("C")
    stats.record_send("T", 5, 500)
    stats.record_delayed_send(2, 1, 90)
    stats.record_send_back("T", "G", delay_queue=3, size=80)
    stats.record_send_back("T", "G")
    stats.record_delayed_delivery("T", 2, 1, 70)
    stats.record_pull("T", "G", 1, PULL)
    stats.record_transaction_read("H", 4, 400)
    for item in stats.items():
        item.sample(MINUTE, 10_000)
    counts = {f"{name} {key}": (entry.sum, entry.times) for name, key, entry in stats.snapshots(MINUTE)}
    assert counts == {
        "TOPIC_PUT_NUMS T": (6, 2),
        "TOPIC_PUT_SIZE T": (570, 2),
        "TOPIC_PUT_NUMS SCHEDULE_TOPIC_XXXX": (2, 2),
        "TOPIC_PUT_SIZE SCHEDULE_TOPIC_XXXX": (170, 2),
        "QUEUE_PUT_NUMS SCHEDULE_TOPIC_XXXX@2": (1, 1),
        "QUEUE_PUT_SIZE SCHEDULE_TOPIC_XXXX@2": (90, 1),
        "QUEUE_PUT_NUMS SCHEDULE_TOPIC_XXXX@3": (1, 1),
        "QUEUE_PUT_SIZE SCHEDULE_TOPIC_XXXX@3": (80, 1),
        "GROUP_GET_NUMS T@G": (32, 1),
        "GROUP_GET_SIZE T@G": (6400, 1),
        "GROUP_GET_NUMS SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER": (1, 1),
        "GROUP_GET_SIZE SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER": (70, 1),
        "GROUP_GET_NUMS H@CID_RMQ_SYS_TRANS": (4, 1),
        "GROUP_GET_SIZE H@CID_RMQ_SYS_TRANS": (400, 1),
        "QUEUE_GET_NUMS SCHEDULE_TOPIC_XXXX@2@SCHEDULE_CONSUMER": (1, 1),
        "QUEUE_GET_SIZE SCHEDULE_TOPIC_XXXX@2@SCHEDULE_CONSUMER": (70, 1),
        "GROUP_GET_LATENCY 1@T@G": (2, 1),
        "SNDBCK_PUT_NUMS T@G": (2, 2),
        "BROKER_PUT_NUMS C": (7, 0),
        "BROKER_GET_NUMS C": (36, 0),
    }
    assert {name: entry.values() for name, entry in stats.moments.items()} == {
        "GROUP_GET_FALL_SIZE": {"1@T@G": 177},
        "GROUP_GET_FALL_TIME": {"1@T@G": 5},
    }


def test_without_details_there_are_no_per_queue_items() -> None:
    stats = BrokerStats("C", detail=False, fall_recorded=False)
    stats.record_delayed_send(2, 1, 90)
    stats.record_delayed_delivery("T", 2, 1, 70)
    stats.record_pull("T", "G", 1, PULL)
    keys = {name: key for name, key, _ in stats.snapshots(MINUTE)}
    assert not {name for name in keys if name.startswith("QUEUE_")}
    assert keys["GROUP_GET_LATENCY"] == "T@G"
    assert stats.fall_size.values() == {}


@pytest.mark.parametrize("group", ["TOOLS_CONSUMER", "__MONITOR_CONSUMER", "CID_RMQ_SYS_X", "ariane-spark"])
def test_reads_by_tools_do_not_count_as_consumption(group: str) -> None:
    stats = BrokerStats("C")
    assert is_tool_group(group) and not is_tool_group("G")
    stats.record_pull("T", group, 1, PULL)
    stats.record_miss(group)
    stats.record_scan("T", group, 1, 10**9)
    assert [name for name, _, _ in stats.snapshots(MINUTE)] == ["BROKER_PUT_NUMS", "BROKER_GET_NUMS"]
    assert (stats.store_stats.found, stats.store_stats.transferred, stats.store_stats.missed, len(stats.fall_size)) == (
        0,
        0,
        0,
        0,
    )


def test_the_spark_source_reads_with_a_tools_group_by_default() -> None:
    defaults = {field.name: field.default for field in msgspec.structs.fields(SourceOptions)}
    assert is_tool_group(str(defaults["group_id"]))


@pytest.mark.parametrize("drop_unused", [True, False])
def test_items_of_deleted_topics_and_groups_are_removed_if_enabled(drop_unused: bool) -> None:
    stats = BrokerStats("C", drop_unused=drop_unused)
    for topic in ("T", "T2"):
        stats.record_send(topic, 1, 1)
        for group in ("G", "G2"):
            stats.record_pull(topic, group, 0, PULL)
            stats.record_send_back(topic, group)
    stats.drop_topic("T")
    stats.drop_group("G2")
    kept = {key for name, key, _ in stats.snapshots(MINUTE) if not name.startswith("BROKER_")}
    kept |= stats.fall_size.values().keys() | stats.fall_time.values().keys()
    if drop_unused:
        assert kept == {"T2", "T2@G", "0@T2@G"}
    else:
        assert {"T", "T@G", "T2@G2", "0@T@G"} <= kept


def test_an_unknown_name_or_key_has_no_snapshot() -> None:
    stats = BrokerStats("C")
    assert stats.snapshot("TOPIC_PUT_NUMS", "T", MINUTE) is None
    assert stats.snapshot("NO_SUCH", "T", MINUTE) is None
    assert stats.snapshot("BROKER_PUT_NUMS", "C", MINUTE) == EMPTY_SNAPSHOT


# --- lines ---


def test_log_lines_equal_those_of_4_9_4() -> None:
    line = stats_log_format.format_item("TOPIC_PUT_NUMS", "T1", MINUTE, StatsSnapshot(6, 0.1, 6, 1.0))
    assert stats_log_format.format_line(at("2026-11-21T01:50:00"), line) == (
        "2026-11-21 09:50:00 INFO - [TOPIC_PUT_NUMS] [T1] Stats In One Minute, SUM: 6 TPS: 0.10 AVGPT: 1.00\n"
    )
    latency = StatsSnapshot(1, 0.5, 4, 0.25)
    assert stats_log_format.format_item("GROUP_GET_LATENCY", "0@T@G", HOUR, latency) == (
        "[GROUP_GET_LATENCY] [0@T@G] Stats In One Hour, TIMES: 4 AVGRT: 0.25"
    )
    assert (
        stats_log_format.format_item("X", "k", DAY, EMPTY_SNAPSHOT)
        == "[X] [k] Stats In One Day, SUM: 0 TPS: 0.00 AVGPT: 0.00"
    )
    assert stats_log_format.format_latest_value("GROUP_GET_FALL_SIZE", "0@T@G", 177) == (
        "[GROUP_GET_FALL_SIZE] [0@T@G] Stats Every 5 Minutes, Value: 177"
    )


@pytest.mark.parametrize(("value", "text"), [(0.125, "0.13"), (0.135, "0.14"), (2.5, "2.50"), (1e7, "10000000.00")])
def test_a_half_is_rounded_up(value: float, text: str) -> None:
    assert stats_log_format.format_two_decimals(value) == text


def test_log_lines_of_the_store() -> None:
    puts = StoreStats()
    assert (
        stats_log_format.format_store_rates(puts)
        == "[STORETPS] put_tps  get_found_tps  get_miss_tps  get_transfered_tps "
    )
    for second in range(61):
        puts.sample(second * 1000, second * 5)
    puts.fast_puts += 3
    assert stats_log_format.format_store_rates(puts) == (
        "[STORETPS] put_tps 5.0 get_found_tps 0.0 get_miss_tps 0.0 get_transfered_tps 0.0"
    )
    assert stats_log_format.format_put_times(puts.roll_minute()).startswith(
        "[PAGECACHERT] TotalPut 3, PutMessageDistributeTime [<=0ms]:3 [0~10ms]:0 "
    )


# --- puts ---


def test_a_rate_is_unknown_until_its_window_is_complete() -> None:
    puts = StoreStats()
    for second in range(11):
        assert puts.rate(10, "put") is None
        puts.found += 1
        puts.transferred += 32
        puts.sample(second * 1000, second * 100)
    assert puts.rate(10, "put") == 100.0
    assert puts.rate(10, "found", "missed") == 1.0
    assert puts.rate(10, "transferred") == 32.0
    assert puts.rate(60, "put") is None
    for second in range(11, 2000):
        puts.sample(second * 1000, 1000)
    assert [puts.rate(seconds, "put") for seconds in (10, 60, 600)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("ms", "label"),
    [
        (1, "[0~10ms]"), (9.9, "[0~10ms]"), (10, "[10~50ms]"), (50, "[50~100ms]"), (150, "[100~200ms]"),
        (200, "[200~500ms]"), (999, "[500ms~1s]"), (1000, "[1~2s]"), (4500, "[4~5s]"), (9999, "[5~10s]"),
        (10_000, "[10s~]"),
    ],
)  # fmt: skip
def test_a_put_is_counted_in_its_time_bucket(ms: float, label: str) -> None:
    puts = StoreStats()
    puts.record_slow_puts(1, ms)
    minute = puts.roll_minute()
    assert dict(zip(LABELS, minute.coarse, strict=True)) == {item: int(item == label) for item in LABELS}
    assert f"{label}:1 " in minute.format_java()
    assert puts.roll_minute().total == 0


def test_percentiles_are_interpolated_linearly_within_a_bucket() -> None:
    puts = StoreStats()
    puts.fast_puts = 900
    for _ in range(100):
        puts.record_slow_puts(1, 105)  # the bucket from 100 to 110
    minute = puts.roll_minute()
    assert minute.percentile_ms(0.45) == 0.5
    assert minute.percentile_ms(0.99) == pytest.approx(109)
    assert minute.percentile_ms(0.999) == pytest.approx(109.9)
    assert StoreStats().roll_minute().percentile_ms(0.99) == 0.0
    puts.record_slow_puts(1, 60_000)
    assert puts.roll_minute().percentile_ms(1.0) == FINE_BOUNDS_MS[-1] == 10_000
    assert puts.put_max_ms == 60_000


def test_fine_bucket_bounds_equal_those_of_4_9_4() -> None:
    assert len(FINE_BOUNDS_MS) == 20 + 15 + 10 + 10 + 6 + 5 + 9
    assert list(FINE_BOUNDS_MS) == sorted(set(FINE_BOUNDS_MS))


def test_daily_totals_roll_over_at_midnight() -> None:
    puts = StoreStats()
    puts.transferred = 30
    puts.start_day(100)
    puts.transferred = 50
    puts.start_day(170)
    assert puts.daily_totals == DailyTotals(put_yesterday=100, put_today=170, got_yesterday=30, got_today=50)


# --- schedule ---


def test_next_minute_hour_and_midnight() -> None:
    india = timezone(timedelta(hours=5, minutes=30))
    now = at("2026-11-21T09:50:07.250")
    assert next_minute_ms(now) == at("2026-11-21T09:51:00")
    assert next_minute_ms(at("2026-11-21T09:51:00")) == at("2026-11-21T09:52:00")
    assert next_hour_ms(now, UTC) == at("2026-11-21T10:00:00")
    assert next_hour_ms(now, india) == at("2026-11-21T10:30:00")
    assert next_midnight_ms(now, UTC) == at("2026-11-22T00:00:00")
    assert next_midnight_ms(now, india) == at("2026-11-22T00:00:00", india)


def test_a_day_of_23_hours_also_ends_at_midnight() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert next_midnight_ms(at("2026-03-29T01:00:00", berlin), berlin) == at("2026-03-30T00:00:00", berlin)


def test_each_task_is_due_at_its_scheduled_times() -> None:
    start = at("2026-11-21T23:58:57")
    schedule = StatsSchedule(start, 0, UTC)
    seen: dict[ScheduledTask, list[int]] = {job: [] for job in ScheduledTask}
    for second in range(0, 700):
        for job in schedule.due(start + second * 1000, second * 1000):
            seen[job].append(second)
    assert seen[ScheduledTask.SAMPLE_MINUTE] == list(range(0, 700, 10))
    assert seen[ScheduledTask.SAMPLE_HOUR] == [0, 600]
    assert seen[ScheduledTask.SAMPLE_DAY] == [0]
    assert seen[ScheduledTask.ROLL_PUT_TIMES] == list(range(60, 700, 60))
    assert seen[ScheduledTask.STOP_SLOW_CONSUMERS] == [180, 360, 540]
    assert seen[ScheduledTask.PRINT_MINUTE] == list(range(3, 700, 60))
    assert seen[ScheduledTask.PRINT_LATEST_VALUES] == [3, 303, 603]
    assert seen[ScheduledTask.PRINT_HOUR] == seen[ScheduledTask.PRINT_DAY] == seen[ScheduledTask.START_DAY] == [63]


def test_missed_runs_are_caught_up_once_and_a_clock_set_back_is_followed() -> None:
    start = at("2026-11-21T10:00:30")
    schedule = StatsSchedule(start, 0, UTC)
    schedule.due(start, 0)
    later = 3 * 3_600_000
    due = schedule.due(start + later, later)
    assert due == sorted(due)
    assert {ScheduledTask.SAMPLE_MINUTE, ScheduledTask.PRINT_MINUTE, ScheduledTask.PRINT_HOUR} <= set(due)
    assert schedule.due(start + later + 1000, later + 1000) == []
    back = start - 3_600_000
    assert schedule.due(back, later + 2000) == []
    assert ScheduledTask.PRINT_MINUTE in schedule.due(back + 30_000, later + 3000)


# --- the log, and who writes it ---


def test_the_log_is_rotated_by_size_and_old_files_are_retained(tmp_path: Path) -> None:
    journal = StatsLogFile(tmp_path / "logs", size_max=100, generations=2)
    for number in range(5):
        journal.write([f"{number}" * 59 + "\n"])
    assert journal.path.read_text() == "4" * 59 + "\n"
    older = {path.name: gzip.decompress(path.read_bytes()).decode()[0] for path in journal.path.parent.glob("*.gz")}
    assert older == {"stats.1.log.gz": "3", "stats.2.log.gz": "2"}
    assert len(list(journal.path.parent.iterdir())) == 3


def run_for(recorder: StatsRecorder, clock: FakeClock, seconds: int) -> None:
    async def run() -> None:
        task = asyncio.create_task(recorder.run())
        while clock.sleep_count < seconds and not task.done():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_the_recorder_samples_and_prints(tmp_path: Path) -> None:
    clock = FakeClock(at("2026-11-21T01:49:15"), is_auto=True)
    stats = BrokerStats("C", now_ms=clock.now_ms)
    stats.record_send("T1", 6, 600)
    stats.record_pull("T1", "G", 0, PULL)
    journal = StatsLogFile(tmp_path)
    run_for(StatsRecorder(stats, lambda: 6, journal, clock), clock, 50)
    written = journal.path.read_text().splitlines()
    assert (
        "2026-11-21 09:50:00 INFO - [TOPIC_PUT_NUMS] [T1] Stats In One Minute, SUM: 6 TPS: 0.12 AVGPT: 6.00" in written
    )
    assert "2026-11-21 09:50:00 INFO - [GROUP_GET_FALL_SIZE] [0@T1@G] Stats Every 5 Minutes, Value: 177" in written
    assert stats.store_stats.rate(10, "put") == 0.0


class Groups:
    """Consumer groups that only note which of them were disabled."""

    def __init__(self) -> None:
        self.disabled: list[str] = []

    def disable_consuming(self, name: str) -> None:
        self.disabled.append(name)


def test_groups_with_a_large_lag_are_disabled_unless_they_stopped_reading(tmp_path: Path) -> None:
    clock = FakeClock(0, is_auto=True)
    stats = BrokerStats("C", now_ms=clock.now_ms)
    groups = Groups()
    recorder = StatsRecorder(stats, lambda: 0, StatsLogFile(tmp_path), clock, fallbehind_max=1000, groups=groups)
    stats.record_pull("T", "near", 0, PULL)
    stats.record_pull("T", "far", 0, PULL._replace(behind=1001))
    stats.record_scan("T", "far", 1, 2000)
    stats.record_pull("T", "caught-up", 0, PULL._replace(behind=5000))
    clock.advance_ms(1)
    stats.record_scan("T", "caught-up", 0, 5)
    run_for(recorder, clock, 700)
    assert groups.disabled == ["far"]


def test_a_log_that_cannot_be_written_is_reported_and_sampling_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    clock = FakeClock(at("2026-11-21T01:49:50"), is_auto=True)
    stats = BrokerStats("C", now_ms=clock.now_ms)
    stats.record_send("T", 1, 1)
    run_for(StatsRecorder(stats, lambda: 1, StatsLogFile(tmp_path / "file"), clock), clock, 30)
    assert "Cannot write" in caplog.text
    assert clock.sleep_count >= 30

"""Delayed messages: which messages are delayed, where they are stored, and when they are delivered. Fake clock, disk in memory."""

from __future__ import annotations

from struct import pack
from types import SimpleNamespace

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.delivery.delayed_delivery import (
    DelayLimits,
    DeliveryLoop,
    decode_timer,
    delay_target,
    remove_delay,
    schedule,
)
from ariane.errors import ConfigError, ProtocolError, ReplyError
from ariane.model import host
from ariane.protocol.records import properties, record
from ariane.store.delays import pending_deliveries
from ariane.store.message_store import AppendResult, MessageStore, RecordDraft, RecordFilter, StoreConfig, open_store
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk

HOST = host.pack("127.0.0.1", 10911)
NOW_MS = 1_700_000_000_000
YEAR_MS = 365 * 86_400_000
LIMITS = DelayLimits(levels=18, floor_ms=NOW_MS, max_delay_ms=YEAR_MS)


class Rig:
    """A store on a disk in memory, a clock that is set, and the deliveries of a broker."""

    def __init__(self, disk: FakeDisk | None = None, **settings: object) -> None:
        self.disk = disk or FakeDisk()
        self.clock = FakeClock(NOW_MS)
        self.config = StoreConfig(root="/store", commit_log_size=1 << 20, consume_queue_size=2000, **settings)  # type: ignore[arg-type]
        self.open()

    def open(self) -> None:
        self.store: MessageStore = open_store(self.config, self.disk, now_ms=self.clock.now_ms, store_host=HOST)
        self.deliveries = DeliveryLoop(
            store=self.store,
            listener=SimpleNamespace(on_stored=lambda: None, on_delivered=lambda due, draft, size: None),
            clock=self.clock,
        )
        self.store.dispatch_pending()

    def send(self, body: str, **own: str) -> AppendResult:
        draft = RecordDraft(topic="T", queue_id=1, body=body.encode(), born_ms=1, born_host=HOST)
        floor_ms = max(self.store.last_ms, self.store.delayed.min_due_ms)
        placed = self.store.put(schedule(draft, own, self.clock.now_ms(), LIMITS._replace(floor_ms=floor_ms)))
        self.store.dispatch_pending()
        return placed

    def deliver(self) -> list[str]:
        """Deliver the due messages; return bodies in the order of their arrival since the last call."""
        before = self.store.max_offset("T", 1)
        while self.deliveries.deliver(3):
            pass
        self.store.dispatch_pending()
        return [stored_record.body.decode() for stored_record in self.records()[before:]]

    def records(self) -> list[record.Record]:
        match = [self.store.read_queue_record("T", 1, position) for position in range(self.store.max_offset("T", 1))]
        return [record.decode(data) for data in match if data is not None]


# --- which messages are delayed ---


@pytest.mark.parametrize(
    ("own", "due_ms"),
    [
        ({"__STARTDELIVERTIME": str(NOW_MS + 5)}, NOW_MS + 5),
        ({"TIMER_DELIVER_MS": str(NOW_MS + 5)}, NOW_MS + 5),
        ({"TIMER_DELAY_MS": "1500"}, NOW_MS + 1500),
        ({"TIMER_DELAY_SEC": "3"}, NOW_MS + 3000),
        ({"TIMER_DELAY_SEC": "3", "TIMER_DELAY_MS": "7", "TIMER_DELIVER_MS": "9"}, NOW_MS + 3000),
        ({"__STARTDELIVERTIME": str(NOW_MS + YEAR_MS)}, NOW_MS + YEAR_MS),
    ],
)
def test_a_message_with_a_delivery_time_is_stored_in_the_timer_topic(own: dict[str, str], due_ms: int) -> None:
    where = delay_target(own, "T", 2, NOW_MS, LIMITS)
    assert where == ("rmq_sys_wheel_timer", 0, due_ms)
    assert (own["REAL_TOPIC"], own["REAL_QID"], own["TIMER_OUT_MS"]) == ("T", "2", str(due_ms))


def test_a_relative_delay_is_stored_as_an_absolute_time() -> None:
    own = {"TIMER_DELAY_SEC": "3", "a": "b"}
    delay_target(own, "T", 2, NOW_MS, LIMITS)
    assert "TIMER_DELAY_SEC" not in own
    assert own["TIMER_DELIVER_MS"] == str(NOW_MS + 3000)
    assert own["a"] == "b"


def test_a_delivery_time_in_the_past_is_not_a_delay() -> None:
    for own in (
        {"__STARTDELIVERTIME": str(NOW_MS)},
        {"TIMER_DELIVER_MS": "1"},
        {"TIMER_DELAY_MS": "0"},
        {"DELAY": "0"},
    ):
        assert delay_target(own, "T", 0, NOW_MS, LIMITS) is None
        assert "REAL_TOPIC" not in own


def test_a_delay_level_takes_precedence_over_a_time_and_is_capped() -> None:
    own = {"DELAY": "99", "__STARTDELIVERTIME": str(NOW_MS + 5)}
    assert delay_target(own, "T", 0, NOW_MS, LIMITS) == ("SCHEDULE_TOPIC_XXXX", 17, None)
    assert own == {"DELAY": "18", "REAL_TOPIC": "T", "REAL_QID": "0"}


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({"__STARTDELIVERTIME": "tomorrow"}, "__STARTDELIVERTIME='tomorrow'"),
        ({"TIMER_DELAY_MS": "-1"}, "TIMER_DELAY_MS='-1'"),
        ({"TIMER_DELAY_SEC": "1.5"}, "TIMER_DELAY_SEC='1.5'"),
        ({"DELAY": "x"}, "DELAY='x'"),
        ({"TIMER_DELIVER_MS": "9" * 30}, "TIMER_DELIVER_MS"),
        ({"TIMER_DELIVER_MS": str(NOW_MS + YEAR_MS + 1)}, "timerMaxDelaySec"),
    ],
)
def test_an_invalid_delivery_time_is_rejected_with_its_property(own: dict[str, str], named: str) -> None:
    with pytest.raises(ProtocolError, match=named):
        delay_target(own, "T", 0, NOW_MS, LIMITS)


def test_the_delay_of_a_dead_letter_is_removed() -> None:
    own = {"DELAY": "3", "TIMER_DELAY_SEC": "9", "a": "b"}
    remove_delay(own)
    assert own == {"a": "b"}


def test_invalid_delay_levels_in_the_configuration_are_rejected() -> None:
    assert BrokerConfig(message_delay_level="1s 2m 3h 4d").delays_ms == (1000, 120_000, 10_800_000, 345_600_000)
    for text in ("1s x", "", "0s", "1.5s", "5"):
        with pytest.raises(ConfigError, match="messageDelayLevel"):
            BrokerConfig(broker_name="b", message_delay_level=text).validate()


# --- delivery ---


def test_timers_are_delivered_in_due_order_and_never_early() -> None:
    rig = Rig()
    for body, after_ms in (("c", 300), ("a", 100), ("b", 200)):
        rig.send(body, TIMER_DELAY_MS=str(after_ms))
    assert rig.store.delayed.next_due_ms() == NOW_MS + 100
    rig.clock.set_ms(NOW_MS + 99)
    assert rig.deliver() == []
    rig.clock.set_ms(NOW_MS + 100)
    assert rig.deliver() == ["a"]
    rig.clock.set_ms(NOW_MS + 300)
    assert rig.deliver() == ["b", "c"]
    assert rig.store.delayed.next_due_ms() is None


def test_a_delivered_message_has_its_original_topic_queue_and_properties() -> None:
    rig = Rig()
    placed = rig.send("x", __STARTDELIVERTIME=str(NOW_MS + 5), TAGS="a", k="v")
    rig.clock.advance_ms(10)
    rig.deliver()
    (item,) = rig.records()
    assert (item.topic, item.queue_id, item.body, ~item.prepared_offset) == ("T", 1, b"x", placed.offset)
    assert item.property_map() == {"__STARTDELIVERTIME": str(NOW_MS + 5), "TAGS": "a", "k": "v"}
    assert rig.store.get("T", 1, 0, 1, RecordFilter(frozenset({97}))).records  # found by its tag


def test_delay_levels_retain_the_properties_of_4_9_4() -> None:
    rig = Rig()
    rig.send("x", DELAY="2", k="v")
    rig.clock.advance_ms(4999)
    assert rig.deliver() == []
    rig.clock.advance_ms(1)
    assert rig.deliver() == ["x"]
    assert rig.records()[0].property_map() == {"DELAY": "2", "k": "v", "REAL_TOPIC": "T", "REAL_QID": "1"}


def test_overdue_messages_are_delivered_oldest_first_for_levels_and_timers() -> None:
    rig = Rig()
    rig.send("level", DELAY="1")
    rig.send("early", TIMER_DELAY_MS="500")
    rig.send("late", TIMER_DELAY_MS="1500")
    rig.clock.advance_ms(5000)
    assert rig.deliver() == ["early", "level", "late"]


def test_an_undeliverable_message_blocks_no_other() -> None:
    rig = Rig()
    bad = {"REAL_TOPIC": "../x", "REAL_QID": "0", "TIMER_OUT_MS": str(NOW_MS + 1)}
    rig.store.put(
        RecordDraft(
            topic="rmq_sys_wheel_timer", queue_id=0, body=b"", born_ms=1, born_host=HOST,
            properties=properties.join(bad), tags_code=NOW_MS + 1,
        )
    )  # fmt: skip
    rig.store.dispatch_pending()
    rig.send("good", TIMER_DELAY_MS="2")
    rig.clock.advance_ms(10)
    assert rig.deliver() == ["good"]
    assert (rig.deliveries.counts.failed, rig.deliveries.counts.delivered) == (1, 1)


def test_late_deliveries_are_counted() -> None:
    rig = Rig()
    rig.send("x", TIMER_DELAY_MS="10")
    rig.send("y", TIMER_DELAY_MS="1500")
    rig.clock.advance_ms(1500)
    rig.deliver()
    assert (rig.deliveries.counts.late, rig.deliveries.counts.max_late_ms) == (1, 1490)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_cancelled_timer_does_not_hold_back_later_messages(restarts: bool) -> None:
    rig = Rig()
    rig.send("cancelled", TIMER_DELAY_MS="60000")
    rig.deliveries.cancel(0, NOW_MS + 60_000, HOST)
    rig.store.dispatch_pending()
    assert rig.deliver() == []
    if restarts:
        rig.store.close()
        rig.open()
        assert rig.deliver() == []
    rig.send("soon", TIMER_DELAY_MS="1000")
    assert rig.store.delayed.next_due_ms() == NOW_MS + 1_000
    rig.clock.set_ms(NOW_MS + 1_000)
    assert rig.deliver() == ["soon"]
    rig.clock.set_ms(NOW_MS + 60_000)
    assert rig.deliver() == []
    assert rig.store.delayed.next_due_ms() is None


def test_a_cancelled_timer_is_not_delivered_even_after_a_restart() -> None:
    rig = Rig()
    placed = rig.send("no", TIMER_DELAY_MS="10")
    rig.send("yes", TIMER_DELAY_MS="11")
    match = decode_timer(rig.store.read_record(placed.offset))
    assert match is not None
    rig.deliveries.cancel(match.number, match.due_ms, HOST)
    rig.store.dispatch_pending()
    with pytest.raises(ReplyError, match="cancelled"):
        rig.deliveries.cancel(match.number, match.due_ms, HOST)
    rig.store.close()
    rig.open()
    rig.clock.advance_ms(100)
    assert rig.deliver() == ["yes"]
    with pytest.raises(ReplyError, match="delivered"):
        rig.deliveries.cancel(1, NOW_MS + 11, HOST)


def test_timers_that_a_broker_of_5x_has_delivered_are_not_delivered_again() -> None:
    rig = Rig()
    rig.send("before", TIMER_DELAY_MS="10")
    rig.clock.advance_ms(100)
    assert rig.deliver() == ["before"]
    rig.send("there", TIMER_DELAY_MS="5000")
    rig.send("later", TIMER_DELAY_MS="60000")
    rig.store.close()
    check_point = pack(">qqqq", NOW_MS + 20_000, 0, 3, 0)  # of 5.x: it has read the wheel up to there, and three timers
    rig.disk.put_file("/store/config/timercheck", check_point.ljust(4096, b"\0"))
    rig.clock.advance_ms(30_000)
    for _ in range(2):  # the same check point has no effect later
        rig.open()
        assert rig.deliver() == []
        rig.send("new", TIMER_DELAY_MS="1000")
        rig.clock.advance_ms(2_000)
        assert rig.deliver() == ["new"]
        rig.store.close()
    rig.open()
    rig.clock.advance_ms(60_000)
    assert rig.deliver() == ["later"]


def test_a_clock_set_back_delivers_no_timer_early_and_loses_none() -> None:
    rig = Rig()
    rig.send("a", TIMER_DELAY_MS="10")
    rig.clock.advance_ms(3_600_000)
    assert rig.deliver() == ["a"]
    rig.clock.advance_ms(-3_600_000)
    due_ms = rig.clock.now_ms() + 50
    rig.send("b", TIMER_DELIVER_MS=str(due_ms))
    rig.store.close()
    rig.open()
    rig.clock.advance_ms(10)
    assert rig.deliver() == []
    rig.clock.advance_ms(3_600_000)
    assert rig.deliver() == ["b"]


def test_a_clock_set_back_does_not_postpone_delay_levels() -> None:
    rig = Rig()
    rig.send("a", DELAY="1")
    rig.clock.advance_ms(-3_600_000)
    assert rig.deliver() == []
    rig.clock.advance_ms(1000)
    assert rig.deliver() == ["a"]


# --- many ---


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RUN_MIN", 4), ("RUN_MAX", 6), ("BLOCK", 2), ("MERGE_THRESHOLD", 3), ("MERGE_ENTRIES_MAX", 2)):
        monkeypatch.setattr(pending_deliveries, name, value)


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("restart", ["none", "clean", "killed", "state lost", "run lost"])
def test_many_timers_are_delivered_in_order_across_runs_and_restarts(restart: str) -> None:
    rig = Rig()
    expected: list[str] = []
    for number in range(120):
        after_ms = (number * 37) % 101 + 1
        expected.append(f"{after_ms:03d}.{number:03d}")
        rig.send(expected[-1], TIMER_DELAY_MS=str(after_ms))
        if number % 5 == 4:
            rig.store.flush()
            rig.store.write_checkpoint()
    received = []
    for step in range(0, 121, 20):
        rig.clock.set_ms(NOW_MS + step)
        received += rig.deliver()
        if restart == "none":
            continue
        if restart == "killed":
            rig.store.flush()
            rig.disk = rig.disk.after_kill()
        else:
            rig.store.close()
        files = [name for name in rig.disk.listdir("/store/timers") if name != "state"]
        if restart == "state lost":
            rig.disk.remove("/store/timers/state")
        if restart == "run lost" and files:
            rig.disk.remove(f"/store/timers/{files[0]}")
        rig.open()
    assert received == sorted(expected, key=lambda text: (text[:3], text[4:]))


@pytest.mark.usefixtures("small_runs")
def test_a_delivery_with_a_torn_queue_offset_is_repeated() -> None:
    rig = Rig()
    rig.send("first")
    rig.send("delayed", TIMER_DELAY_MS="10")
    rig.store.flush()
    rig.store.write_checkpoint()
    end = rig.store.commit_log_max
    rig.clock.advance_ms(10)
    assert rig.deliver() == ["delayed"]
    rig.disk = rig.disk.after_kill()
    rig.disk.contents("/store/commitlog/" + "0" * 20)[end + 20 : end + 28] = bytes(8)
    rig.open()
    assert rig.deliver() == ["delayed"]


def test_finished_timer_runs_are_removed_and_small_ones_merged() -> None:
    rig = Rig()
    for number in range(100):
        rig.send("far" if number % 10 == 0 else "near", TIMER_DELAY_MS="100000" if number % 10 == 0 else "5")
        rig.store.flush()
        rig.store.write_checkpoint()
    rig.clock.advance_ms(10)
    assert len(rig.deliver()) == 90
    for _ in range(40):
        rig.send("far", TIMER_DELAY_MS="100000")
        rig.store.flush()
        rig.store.write_checkpoint()
    assert len(rig.disk.listdir("/store/timers")) < 16
    rig.clock.advance_ms(200_000)
    assert len(rig.deliver()) == 50
    rig.store.flush()
    rig.store.write_checkpoint()
    assert rig.disk.listdir("/store/timers") == ["state"]

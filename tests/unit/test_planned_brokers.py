"""Which brokers `ariane up` plans, the settings of broker sets, and what the demo of failover measures."""

from __future__ import annotations

import pytest

from ariane.broker.config.broker_config import BROKER_SETTINGS
from ariane.broker.failover.failover_settings import check_settings, members_of
from ariane.cli.up.demo_kills import AcknowledgementPauses, build_failover_report
from ariane.cli.up.demo_tracker import DemoTracker
from ariane.cli.up.local_etcd import etcd_arguments, require_etcd
from ariane.cli.up.planned_brokers import failover_keys, plan_brokers
from ariane.cli.up.up_command import _check_failover
from ariane.errors import UsageError


def test_the_first_broker_and_its_slave_keep_the_names_of_a_home_with_one_broker():
    planned = plan_brokers(2, has_slaves=True, has_failover=False)
    assert [(each.process, each.store) for each in planned] == [
        ("broker", "store"),
        ("broker-b", "store-b"),
        ("slave", "store-slave"),
        ("slave-b", "store-slave-b"),
    ]
    assert [each.broker for each in planned] == ["broker-a", "broker-b"] * 2
    assert [each.is_optional for each in planned] == [False, False, True, True]


def test_members_of_a_broker_set_have_valid_settings():
    planned = plan_brokers(2, has_slaves=False, has_failover=True)
    ports = {each.process: 10_911 + 10 * number for number, each in enumerate(planned)}
    assert [each.member for each in planned] == ["a1", "a2", "a3", "b1", "b2", "b3"]
    for each in planned:
        keys = {**each.settings, **failover_keys(each, ports, "127.0.0.1:2379"), "listenPort": str(ports[each.process])}
        config, remarks = BROKER_SETTINGS.load(None, keys, {})
        assert remarks == []
        check_settings(config)
        assert members_of(config)[each.member] == f"127.0.0.1:{ports[each.process]}"
        assert len(members_of(config)) == 3


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ((False, False, True, True, None, None), "--slaves"),
        ((True, False, False, False, 5.0, None), "--kill-every"),
        ((False, False, True, False, 5.0, None), "--kill-every"),
        ((True, False, True, False, None, 3), "--kills"),
    ],
)
def test_options_of_failover_without_effect_are_refused(
    arguments: tuple[bool, bool, bool, bool, float | None, int | None], option: str
):
    with pytest.raises(UsageError, match=option):
        _check_failover(*arguments)


def test_without_etcd_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="apt-get install etcd-server"):
        require_etcd()


def test_etcd_listens_on_this_machine_only():
    for argument in etcd_arguments("/data", 1, 2)[2:]:
        assert "http://127.0.0.1:" in argument


def test_the_longest_pause_is_that_since_the_kill():
    pauses = AcknowledgementPauses()
    pauses.on_acknowledged("broker-a", 1.0)
    pauses.on_acknowledged("broker-a", 50.0)
    pauses.reset("broker-a", 60.0)
    pauses.on_acknowledged("broker-a", 60.5)
    pauses.on_acknowledged("broker-a", 68.0)
    pauses.on_acknowledged("broker-b", 90.0)
    assert (pauses.longest_s("broker-a"), pauses.last_s("broker-a")) == (7.5, 68.0)
    assert pauses.longest_s("broker-b") == 0


def test_the_report_counts_what_a_group_did_not_receive():
    tracker = DemoTracker(["stock", "billing"])
    tracker.on_send(1, "created", 0)
    tracker.on_acknowledged(1, "created")
    before = tracker.acknowledged()
    tracker.on_consumed("stock", 1, "created", 1)
    tracker.on_consumed("stock", 1, "created", 2)
    tracker.on_acknowledged(1, "paid")
    assert tracker.missing(before) == 1
    report = build_failover_report(tracker, [9.66])
    assert (report.kills, report.lost, report.duplicates, report.without_master_s) == (1, 3, 1, [9.7])

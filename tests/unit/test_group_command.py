"""`ariane group` and `ariane offset`: their texts, and the command lines that they reject."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ariane.cli import main
from ariane.cli.admin.group_command import _lag_text
from ariane.cli.admin.offset_command import _target
from ariane.cluster.groups.group_lag import GroupLag, QueueLag, UnconsumedAges
from ariane.cluster.groups.offset_admin import EARLIEST, LATEST, OffsetTarget
from ariane.errors import ArianeError, UsageError
from ariane.reports.report import Table

QUEUES = (
    QueueLag("T", "broker-a", 0, 10, 4, 7_000),
    QueueLag("T", "broker-a", 1, 8, 8, 7_000),
    QueueLag("T", "broker-b", 0, 5, None, None),
)


def test_lag_is_printed_queue_by_queue_with_unknown_values_marked() -> None:
    lag = GroupLag("G", QUEUES, 1.25, True, ())
    ages = UnconsumedAges({QUEUES[0].queue: 90_000, QUEUES[2].queue: None}, ())
    title, table, total = _lag_text(lag, ages, {QUEUES[0].queue: "10.0.0.5@4711#9"}, 1)
    assert title == "GROUP G · 1 client · 1.25 messages/s"
    assert isinstance(table, Table)
    assert table.rows == (
        ("T", "broker-a", 0, 4, 10, 6, "1.5m", "10.0.0.5@4711"),
        ("T", "broker-a", 1, 8, 8, 0, "-", "-"),
        ("T", "broker-b", 0, None, 5, None, "?", "-"),
    )
    assert total == "Total lag: 6 (1 of 3 queues unknown)"


def test_a_total_without_all_brokers_says_so() -> None:
    lag = GroupLag("G", QUEUES[:2], None, False, ())
    title, _, total = _lag_text(lag, UnconsumedAges({}, ()), {}, None)
    assert title == "GROUP G · ? clients · ? messages/s"
    assert total == "Total lag: 6 (brokers did not respond)"


def test_targets_of_a_reset() -> None:
    assert _target("earliest", None) == OffsetTarget(EARLIEST)
    assert _target("latest", None) == OffsetTarget(LATEST)
    assert _target("2026-01-31T10:00", None) == OffsetTarget(1_769_853_600_000)
    assert _target(None, 7) == OffsetTarget(offset=7)
    for to, to_offset in ((None, None), ("1h", 7)):
        with pytest.raises(UsageError, match="exactly one of --to and --to-offset"):
            _target(to, to_offset)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("offset", "reset", "G", "T", "--to-offset", "-1"), "expected a whole number"),
        (("offset", "reset", "G", "T", "--to", "yesterday"), "yesterday"),
        (("group", "lag", "a b"), "characters other than"),
        (("group", "change", "G"), "nothing to change"),
        (("group", "list", "--access-key", "a"), "--secret-key"),
        (("group", "list", "-n", "127.0.0.1:1"), "127.0.0.1:1"),
    ],
)
def test_faulty_command_lines_and_unreachable_servers_are_explained(arguments: tuple[str, ...], reason: str) -> None:
    result = CliRunner().invoke(main.app, arguments)
    text = str(result.exception) if isinstance(result.exception, ArianeError) else result.output
    assert result.exit_code != 0
    assert reason in text

"""The decision about topics, groups and contents, and the file that declares it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ariane.console.limits.access import FULL_ACCESS, Access, Mask, current_access, with_access
from ariane.console.limits.access_rules import AccessRules
from ariane.console.security.roles import ConsoleRole
from ariane.errors import ConfigError

RULES = """
[[limit]]
accounts = ["support-.*"]
topics = ["orders.*"]
groups = ["billing"]

[[limit]]
roles = ["viewer"]
topics = ["news"]

[[mask]]
roles = ["viewer", "operator"]
topics = ["orders.*"]
properties = ["card.*"]
"""


def write(path: Path, text: str) -> None:
    """Replace the file, as an editor does: with another inode."""
    (path / "new").write_text(text)
    (path / "new").replace(path / "access.toml")


def test_limits_add_up_and_admins_have_none(tmp_path: Path) -> None:
    write(tmp_path, RULES)
    rules = AccessRules(tmp_path)
    support = rules.access_of("support-1", ConsoleRole.VIEWER)
    assert (support.topics, support.groups) == (("orders.*", "news"), ("billing",))
    assert rules.access_of("support-1", ConsoleRole.ADMIN) == FULL_ACCESS
    operator = rules.access_of("alice", ConsoleRole.OPERATOR)
    assert not operator.is_limited and operator.masks == (Mask(("orders.*",), True, ("card.*",)),)
    # A pattern matches the whole name.
    assert rules.access_of("my-support-1", ConsoleRole.OPERATOR).topics is None


@pytest.mark.parametrize(
    ("topic", "properties", "is_visible"),
    [
        ("orders", {}, True),
        ("orders-eu", {}, True),
        ("my-orders", {}, False),
        ("%DLQ%billing", {"RETRY_TOPIC": "orders"}, True),
        ("%DLQ%billing", {"RETRY_TOPIC": "payroll"}, False),
        ("%DLQ%auditors", {"RETRY_TOPIC": "orders"}, False),
        ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "orders"}, True),
        ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "%RETRY%auditors", "RETRY_TOPIC": "orders"}, False),
        ("RMQ_SYS_TRANS_HALF_TOPIC", {"REAL_TOPIC": "payroll"}, False),
        ("rmq_sys_wheel_timer", {}, False),
        ("RMQ_SYS_TRACE_TOPIC", {}, False),
    ],
)
def test_a_message_is_visible_if_all_its_topics_are(topic: str, properties: Any, is_visible: bool) -> None:
    access = Access(("orders.*",), ("billing",))
    assert access.sees_record(topic, properties) is is_visible


def test_a_changed_file_is_used_and_a_damaged_one_keeps_the_former_limits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = AccessRules(tmp_path)
    assert rules.access_of("support-1", ConsoleRole.OPERATOR).is_full
    write(tmp_path, RULES)
    assert rules.access_of("support-1", ConsoleRole.OPERATOR).is_limited
    write(tmp_path, "[[limit]\n")
    assert rules.access_of("support-1", ConsoleRole.OPERATOR).is_limited
    (tmp_path / "access.toml").unlink()
    assert rules.access_of("support-1", ConsoleRole.OPERATOR).is_limited
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    write(tmp_path, "")
    assert rules.access_of("support-1", ConsoleRole.OPERATOR).is_full


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[[limit]]\ntopics = ["a"]', "neither accounts nor roles"),
        ('[[limit]]\nroles = ["admin"]', "an admin has no limits"),
        ('[[limit]]\nroles = ["owner"]', "owner"),
        ('[[limit]]\nroles = ["viewer"]\ntopics = ["("]', "not a regular expression"),
        ('[[limit]]\nroles = ["viewer"]\ntopics = ["(?i)orders"]', "not a regular expression"),
        ('[[limit]]\nroles = ["viewer"]\ntopic = ["a"]', "topic"),
        ("limit", "cannot read it"),
    ],
)
def test_an_invalid_file_stops_the_start(tmp_path: Path, text: str, fault: str) -> None:
    write(tmp_path, text)
    with pytest.raises(ConfigError, match=fault):
        AccessRules(tmp_path)


def test_access_is_that_of_the_block() -> None:
    limited = Access((), ())
    with with_access(limited):
        assert current_access() is limited
        assert not limited.sees_topic("orders") and not limited.sees_group("billing")
    assert current_access() is FULL_ACCESS

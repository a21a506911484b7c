"""Paths of Apache's dashboard, by what they need. The endpoints themselves are in `console/dashboard`."""

from __future__ import annotations

AREAS = (
    "cluster", "topic", "consumer", "producer", "message", "messageTrace", "dlqMessage", "dashboard", "monitor", "ops",
    "rocketmq", "proxy", "test",
)  # fmt: skip
LOGIN_AREA, ACL_AREA = "login", "acl"
SUFFIXES = (".query", ".do")

# Reads whose names do not end in .query.
OTHER_READS = (
    "/topic/list.queryTopicType", "/consumer/group.refresh", "/consumer/group.refresh.all", "/dashboard/topicCurrent",
    "/rocketmq/nsaddr",
)  # fmt: skip
# Reads that are called .do, because their answer is a file.
EXPORTS = ("/dlqMessage/exportDlqMessage.do", "/dlqMessage/batchExportDlqMessage.do")
# Changes of the console's settings and of alert rules.
ADMIN_AREAS = ("ops", "proxy", "monitor")

_PREFIXES = tuple(f"/{area}/" for area in (*AREAS, LOGIN_AREA, ACL_AREA))


def is_dashboard_path(path: str) -> bool:
    """Return whether a path is one of Apache's dashboard, whose scripts expect its form of answers."""
    return path in OTHER_READS or (path.endswith(SUFFIXES) and path.startswith(_PREFIXES))

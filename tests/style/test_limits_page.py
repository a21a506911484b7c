"""docs/limits.md lists the keys of all limits as the code defines them, and the attacks that replay each hostile property test.

To rewrite the table after a change: `python tests/style/test_limits_page.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from ariane.broker.config.broker_config import BROKER_SETTINGS
from ariane.net.limits.quotas import LIMIT_KEYS, RESOURCES, SCOPES
from attacks import ATTACKS

HOSTILE = Path(__file__).resolve().parents[1] / "property" / "test_hostile_bytes.py"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "limits.md"
START = "<!-- limits: written by python tests/style/test_limits_page.py -->"
END = "<!-- /limits -->"
NAMES = {
    "connections": "connections",
    "requests": "requests per second",
    "bytes_in": "received bytes per second",
    "bytes_out": "sent bytes per second",
    "topics": "topics",
    "groups": "consumer groups",
    "queues": "queues",
    "subscriptions": "subscriptions: topics of each consumer",
    "unfinished": "bytes of unfinished frames",
    "unread": "bytes of unread answers",
}


def table() -> str:
    """Return the table of limits."""
    rows = ["| | in total | per address | per account |", "|---|---|---|---|"]
    for resource in RESOURCES:
        cells = []
        for scope in SCOPES:
            setting = BROKER_SETTINGS.settings.get(LIMIT_KEYS[scope, resource])
            default = f"{int(setting.default_text):,}" if setting is not None else ""
            cells.append(f"`{setting.key}` ({default})" if setting is not None else "–")
        rows.append(f"| {NAMES[resource]} | {' | '.join(cells)} |")
    return "\n".join([START, *rows, END])


def updated(page: str) -> str:
    """Return the page with the current table."""
    return re.sub(f"{START}.*?{END}", table(), page, flags=re.DOTALL)


def test_the_table_is_generated_from_the_definitions() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert table() in page
    assert page == updated(page), f"run: python tests/style/{Path(__file__).name}"


def test_each_hostile_property_test_has_its_attacks() -> None:
    rows = dict(re.findall(r"^\| `(test_\w+)` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.M))
    assert list(rows) == re.findall(r"^def (test_\w+)", HOSTILE.read_text(encoding="utf-8"), re.M)
    for attacks in rows.values():
        names = attacks.partition(". ")[0].split("; ")
        assert attacks.startswith("none: ") or set(names) <= ATTACKS.keys(), attacks


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

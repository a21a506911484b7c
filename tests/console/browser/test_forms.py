"""Every form of the console is used, in this order, with a real cluster: what it needs is created by an earlier one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from console_program import ConsoleProgram, TrafficProgram

pytest.importorskip("playwright", reason="needs playwright: pip install playwright")
pytest.importorskip("fastapi", reason="needs fastapi: pip install 'ariane[console]'")

from crawler import RouteTable
from form_use import DRY_RUN, FormUse, use_form
from page_faults import OpenContext

# test_behaviour.py uses them: they need a console with accounts.
LOGIN_FORMS = {"/login", "/logout"}
# test_account_forms.py uses them: an account would end the access of this console without a log-in.
ACCOUNT_FORMS = ("/access/", "/account/")
REGION = {"key": "regionId", "value": "North"}
QUEUES = {"readQueues": "3", "writeQueues": "3"}
RULE = {"name": "Every lag", "metric": "groupLag", "condition": "above", "threshold": "0", "holdS": "0", "pattern": "*"}
MAIL = {"name": "Mails", "recipients": "a@example.com", "sender": "b@example.com", "host": "127.0.0.1"}
SILENCE, RULE_NAME = {"pattern": "archive", "reason": "an upgrade"}, {"confirm": "Every lag"}
TOKEN, HOOK_NAME = {"authorization": "Bearer 1"}, {"confirm": "Hook"}
HOOK = {"name": "Hook", "url": "{web hook}"}

USES = (
    # --- topics ---
    FormUse("/create-topic", "/create-topic", "Dry run", {"topic": "made-here", "queues": "2"}, DRY_RUN),
    FormUse("/create-topic", "/create-topic", "created topic", {"topic": "made-here", "queues": "2"}),
    FormUse(
        "/topics/made-here/configuration",
        "/topics/{topic}/configuration",
        "changed topic",
        {"readQueues": "3", "writeQueues": "3"},
    ),
    FormUse(
        "/topics/made-here/configuration", "/topics/{topic}/order", "set the order", {"configuration": "broker-a:3"}
    ),
    FormUse(
        "/topics/made-here/send", "/topics/{topic}/send", "SEND_OK", {"body": "你好 📦", "tag": "a", "keys": "K-1"}
    ),
    FormUse("/topics/orders/reset?group=archive&to=latest", "/topics/{topic}/reset", "would move archive", {}, DRY_RUN),
    FormUse("/topics/orders/reset?group=archive&to=latest", "/topics/{topic}/reset", "moved archive"),
    FormUse("/topics/made-here/delete", "/topics/{topic}/delete", "deleted topic", {"confirm": "made-here"}),
    # --- delayed messages and transactions ---
    FormUse("/delayed/{delayed}/cancel", "/delayed/{message_id}/cancel", "Dry run", {}, DRY_RUN),
    FormUse("/delayed/{delayed}/cancel", "/delayed/{message_id}/cancel", "cancelled"),
    FormUse("/transactions", "/transactions/{message_id}/resume", "checks"),
    # --- messages ---
    FormUse("/messages/{order 1}", "/messages/{message_id}/resend", "would", {}, "dryRun"),
    FormUse("/messages/{order 1}", "/messages/{message_id}/resend", "sent"),
    FormUse("/messages/{order 1}", "/messages/{message_id}/consume", "consumed", {"group": "stock"}),
    # --- consumer groups and dead letters ---
    FormUse("/create-group", "/create-group", "Dry run", {"group": "made-group", "retryMaxTimes": "3"}, DRY_RUN),
    FormUse("/create-group", "/create-group", "made-group", {"group": "made-group", "retryMaxTimes": "3"}),
    FormUse("/groups/made-group/configuration", "/groups/{group}/configuration", "made-group", {"retryMaxTimes": "5"}),
    FormUse("/groups/made-group/configuration", "/groups/{group}/suspension", "made-group"),
    FormUse("/groups/archive/offsets", "/groups/{group}/offsets/reset", "would move", {"to": "earliest"}, DRY_RUN),
    FormUse("/groups/archive/offsets", "/groups/{group}/offsets/reset", "moved archive", {"to": "earliest"}),
    FormUse("/groups/archive/offsets", "/groups/{group}/offsets/clone", "made-group", {"destination": "made-group"}),
    FormUse("/groups/made-group/delete", "/groups/{group}/delete", "made-group", {"confirm": "made-group"}),
    FormUse("/dead-letters/billing", "/dead-letters/{group}/resend", "would", {"isMatching": True}, DRY_RUN),
    FormUse("/dead-letters/billing", "/dead-letters/{group}/resend", "sent", {"isMatching": True}),
    # --- brokers: the last ones, because they change what the others use ---
    FormUse("/brokers/broker-a/configuration", "/brokers/{broker}/configuration", "regionId", REGION),
    FormUse("/brokers/broker-a/operations", "/brokers/{broker}/write-permission", "Dry run", button=DRY_RUN),
    FormUse("/brokers/broker-a/operations", "/brokers/{broker}/write-permission", "removed", {"isWritable": "false"}),
    FormUse("/brokers/broker-a/operations", "/brokers/{broker}/write-permission", "restored", {"isWritable": "true"}),
    FormUse("/brokers/broker-a/operations", "/brokers/{broker}/clean", "expired", {"confirm": "broker-a"}),
    # --- alerts ---
    FormUse("/alerts/rules/new", "/alerts/rules", "Every lag", RULE),
    FormUse("/alerts/rules", "/alerts/rules/{rule_id}", "Every lag", {"severity": "critical"}, link="Every lag"),
    FormUse("/alerts", "/alerts/silences", "silenced alerts of", container="#alerts"),
    FormUse("/alerts", "/alerts/close", "closed alert"),  # of any rule: the firing ones vary
    FormUse(
        "/alerts",
        "/alerts/silences",
        "silenced alerts of archive",
        SILENCE,
        container="dialog",
    ),
    FormUse("/alerts", "/alerts/silences/{silence_id}/end", "ended the silence"),
    FormUse(
        "/alerts/rules",
        "/alerts/rules/{rule_id}/delete",
        "deleted alert rule",
        {"confirm": "Every lag"},
        link="Every lag",
    ),
    FormUse("/alerts/channels/new?kind=webHook", "/alerts/channels/web-hooks", "created channel Hook", HOOK),
    FormUse(
        "/alerts/channels",
        "/alerts/channels/web-hooks/{channel_id}",
        "changed channel Hook",
        {"authorization": "Bearer 1"},
        link="Hook",
    ),
    FormUse("/alerts/channels", "/alerts/channels/{channel_id}/test", "sent a test notification"),
    FormUse(
        "/alerts/channels",
        "/alerts/channels/{channel_id}/delete",
        "deleted channel Hook",
        {"confirm": "Hook"},
        link="Hook",
    ),
    FormUse("/alerts/channels/new?kind=email", "/alerts/channels/email", "created channel Mails", MAIL),
    FormUse(
        "/alerts/channels", "/alerts/channels/email/{channel_id}", "changed channel Mails", {"port": "25"}, link="Mails"
    ),
)


class _Receiver(BaseHTTPRequestHandler):
    """Accepts notifications of a web hook."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: the tests' output is not the place."""


@pytest.fixture(scope="module")
def ids(cluster: TrafficProgram) -> Iterator[dict[str, str]]:
    """Values of the names in braces: ids of messages, and the address of a web hook."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {**cluster.info["ids"], "web hook": f"http://127.0.0.1:{server.server_port}/alerts"}
        server.shutdown()


@pytest.fixture(scope="module")
def table() -> RouteTable:
    return RouteTable()


@pytest.mark.long(
    "tests/console/test_alert_pages.py::test_rules_are_created_changed_and_deleted",
    "tests/console/test_topic_areas_with_broker.py::test_a_topic_is_created_changed_and_deleted_by_forms",
    "tests/console/browser/test_behaviour.py::test_a_viewer_sees_no_changes_and_cannot_make_any",
)
def test_every_form_is_used(
    console: ConsoleProgram, open_context: OpenContext, table: RouteTable, ids: dict[str, str]
) -> None:
    """One test: a form needs what those before it created."""
    page = open_context(console.url)[0].new_page()
    for use in USES:
        use_form(page, table, use.with_ids(ids))


def test_no_form_is_missing(table: RouteTable) -> None:
    """A route that changes something and has no use above is an untested form."""
    used = {use.form for use in USES}
    changes = {path for _, path in table.changes() if not path.startswith(ACCOUNT_FORMS)}
    assert changes - used - LOGIN_FORMS == set()

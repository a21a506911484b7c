"""Endpoints of Apache's dashboard: recorded requests of versions 1.0.0 and 2.1.0 are sent to the console on a cluster with the
same content, and the answers are compared. DIFFERENCES lists what differs on purpose, with the reason."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from dashboard_comparison import compare
from dashboard_content import Content, dashboard_content
from dashboard_requests import BOTH, CHANGES, LOGIN, NEW, OLD, READS, DashboardRequest, fill, times
from excel_cells import read_sheet
from fastapi.testclient import TestClient

from ariane.console.app import create_app
from ariane.console.dashboard.dashboard_routers import ROUTERS
from ariane.console.security.roles import ConsoleRole
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings

RECORDINGS = Path(__file__).with_name("dashboard_recordings")
PASSWORD = "recorded-1234"
START_S = 60.0
Answers = dict[str, dict[str, Any]]


class IntendedDifference(NamedTuple):
    """Where our answers differ on purpose.

    Attributes:
        names: Requests, as a regular expression.
        text: Differences of `compare`, as a regular expression.
        reason: Why ours is better, or what does not exist in RocketMQ 4.9.4.
        versions: Versions of the dashboard that it is a difference to.
    """

    names: str
    text: str
    reason: str
    versions: tuple[str, ...] = BOTH


NO_5X = "RocketMQ 4.9.4 has no such feature; 2.1.0 prints defaults of its client library"
IS_ERROR = r"(type \.body\.data: .* → null|type \.body\.errMsg: null → text|value \.body\.status: 0 → -1)"
IS_RESULT = r"(type \.body\.data: null → .*|type \.body\.errMsg: text → null|value \.body\.status: -1 → 0)"
NOT_FOUND = r"(missing \.text|extra \.body)"

DIFFERENCES: tuple[IntendedDifference, ...] = (
    IntendedDifference(
        "clusters", r"extra \.body\.data\.brokerServer\.broker-a\.\d\.(kernels|requestBatchMax|memberStream|replicationTls)",
        "a value that Java's brokers do not report", (NEW,)
    ),
    IntendedDifference(
        "broker-config", r"value \.body\.data\.maxTransferCountOnMessageInMemory: 32 → 1024",
        "our default is higher, for clients that request more than 32 messages"
    ),
    IntendedDifference(
        "broker-config", r"extra \.body\.data\.(haTls|haAclEnable|insecure|accessKey|secretKey\w*|tls\..+|auth.+)",
        "settings of TLS, which are system properties of Java's brokers, and of users, which 4.9.4 does not have", (NEW,)
    ),
    IntendedDifference(
        "broker-config", r"extra \.body\.data\.(memberName|minInSyncReplicas|confirmedReads|failover\w+)",
        "settings of replication", (NEW,)
    ),
    IntendedDifference(
        "broker-config", r"extra \.body\.data\.(cut\w+|grpc(Server|Trace|Trans)\w+|defaultMessageType|remotingTraceTopics)",
        "settings of what was cut off a log, and of clients of RocketMQ 5", (NEW,)
    ),
    IntendedDifference("broker-config", r"extra \.body\.data\.auditLog\w+", "settings of the audit log", (NEW,)),
    IntendedDifference(
        "broker-config", r"extra \.body\.data\.(server|address|account)[A-Z]\w+(Max|PerSecond|PerHour)",
        "limits, which Java's brokers do not have", (NEW,)
    ),
    # --- errors of the dashboard ---
    IntendedDifference(
        "group-(topics|connections)-without-address", IS_RESULT, "2.1.0 fails without the parameter `address`", (NEW,)
    ),
    IntendedDifference("message-by-offset-id", IS_RESULT, "2.1.0 finds unique keys only", (NEW,)),
    IntendedDifference(
        "group-topics-unused", IS_RESULT, "1.0.0 fails for a group without offsets; 2.1.0 returns no topics, too", (OLD,)
    ),
    IntendedDifference(
        "messages-(next-)?page|dead-letters",
        r"(length|value) \.body\.data\.page\.(content|totalElements|totalPages|numberOfElements|last): .*",
        "2.1.0 loses the last message of each queue",
        (NEW,),
    ),
    IntendedDifference(
        "dead-letters-of-none",
        r"value \.body\.data\.page\.(first|number|pageable\.offset|pageable\.pageNumber): .*",
        "2.1.0 numbers the empty page from 1 and all others from 0",
        (NEW,),
    ),
    IntendedDifference(
        "reset-online",
        r"value \.body\.data\.stock\.rollbackStatsList\[\]\.(brokerOffset|consumerOffset): 0 → 5",
        "the dashboard omits these offsets of a group that is online",
    ),
    IntendedDifference(
        "topic-config-of-missing-broker", IS_ERROR, "the dashboard ignores the parameter `brokerName`"
    ),
    IntendedDifference(
        "groups-without-system", r"value \.body\.data\[\]\.group: %SYS%.*", "2.1.0 marks the groups in its cache", (NEW,)
    ),
    IntendedDifference(
        "trace-events|trace|trace-of-default-topic", r"type .*\.storeHost: text → null",
        "consumers report no store host; 2.1.0 prints the address of its own machine", (NEW,),
    ),
    IntendedDifference(
        "trace-of-transaction", r"value .*\.tags: null → ", 'a message without tags is not one with the tag "null"'
    ),
    IntendedDifference(
        "charts-(topics|current-topics.*)", r"missing \.body\.data(\.empty|\[\]: empty,SUM)",
        "the topic was deleted; the dashboard's charts are older",
    ),
    IntendedDifference(
        "charts-(topics|current-topics)", r"missing \.body\.data(\.DefaultCluster_REPLY_TOPIC|.*_REPLY_TOPIC,SUM)",
        "a system topic, as in 2.1.0", (OLD,),
    ),
    IntendedDifference(
        "dead-letters?-file", r"(extra|missing) \.file\.rows\[\]\[\]: (\d.*|\{.*\}|)",
        "the dashboard prints whole numbers as 1.0, and zeros for a message that was not found", (NEW,),
    ),
    IntendedDifference(
        "dead-letters-file", r"(extra|missing) \.file\.rows\[\]\[\]: (no message .*|Range .*)",
        "the reason of the dashboard is a message of a Java library", (NEW,),
    ),
    IntendedDifference(
        "dead-letters?-file", r"value \.contentType: application/vnd\.ms-excel → .*",
        "the type of .xlsx files; that of the dashboard belongs to .xls", (NEW,),
    ),
    # --- forms that were unsuitable ---
    IntendedDifference("monitor-missing|charts-topic-missing", NOT_FOUND, "an empty answer is not JSON: data is null"),
    IntendedDifference("unknown-path", NOT_FOUND, "an unknown path has the form of an error"),
    IntendedDifference("csrf-token", r"(?s)value \.(contentType|text): .*", "an unknown path in both", (NEW,)),
    IntendedDifference(
        "page-logged-out", r"(missing \.(location|text)|extra \.body|value \.status: 302 → 401)",
        "a script cannot use the page of the log-in: status 401 says that it is needed",
    ),
    IntendedDifference("change-ordinary", r"value \.status: 200 → 403", "the HTTP status says so, too"),
    IntendedDifference(
        "login-ordinary", r"value \.body\.data\.loginUserRole: 2 → 0", "roles are numbered as in 1.0.0: 0 and 1", (NEW,)
    ),
    IntendedDifference(
        "name-servers-new", r"value \.contentType: application/json → text/plain", "the answer is no JSON, as in 1.0.0", (NEW,)
    ),
    IntendedDifference(
        "status", r"type \.body\.data\.(CLUSTER_HEALTH_CHECK|TOPIC_ONLY_ONE_BROKER_CHECK): null → list",
        "the checks of the dashboard do nothing",
    ),
    IntendedDifference(
        "groups", r"value \.body\.data\[\]\.group: [^%].* → %SYS%.*", "system groups are marked, as in 2.1.0", (OLD,)
    ),
    IntendedDifference(
        "messages-of-topic", r"missing \.body\.data\[\]\.properties\.(MIN|MAX)_OFFSET",
        "bounds of the queue are no properties of the message",
    ),
    # --- not in RocketMQ 4.9.4, or not a setting of a running console ---
    IntendedDifference(
        "group-config",
        r"missing .*\.(attributes|consumeMessageOrderly|consumeTimeoutMinute|groupRetryPolicy|groupSysFlag|subscriptionDataSet)",
        NO_5X,
        (NEW,),
    ),
    IntendedDifference(
        "topic-types", r"missing \.body\.data\.topicNameList\[\]: %SYS%(TBW102|TRANS_CHECK_MAX_TIME_TOPIC)",
        "2.1.0 lists system topics that no broker has", (NEW,),
    ),
    IntendedDifference(
        "proxies", r"(missing \.body\.data\.proxyAddrList\[\]: ADDR|type \.body\.data\.currentProxyAddr: text → null)",
        NO_5X, (NEW,),
    ),
    IntendedDifference("(add|set)-proxy", IS_ERROR, NO_5X, (NEW,)),
    IntendedDifference(
        "add-name-server", IS_ERROR, "a console shows one cluster; the dashboard forgets its choice at its end", (NEW,)
    ),
)  # fmt: skip


class Exchange(NamedTuple):
    """A recorded request with its answer."""

    version: str
    name: str
    answer: Mapping[str, Any]


def recorded(suffix: str = "") -> list[Exchange]:
    """Return all recordings; those with the suffix `-login` are of a dashboard that demands a log-in."""
    exchanges = []
    for version in BOTH:
        for path in sorted((RECORDINGS / version).glob("*.json")):
            if path.stem.endswith("-login") == (suffix == "-login"):
                entries = json.loads(path.read_text())
                exchanges += [Exchange(version, entry["name"], entry["answer"]) for entry in entries]
    return exchanges


@contextmanager
def content_in_thread(home: Path) -> Iterator[Content]:
    """Run the cluster and its clients in a thread, because the test client has an event loop of its own."""
    started: Future[Content] = Future()
    stop: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        is_stopped = asyncio.Event()
        stop.set_result((asyncio.get_running_loop(), is_stopped))
        async with dashboard_content(home) as content:
            started.set_result(content)
            await is_stopped.wait()

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=main, name="dashboard-content", daemon=True)
    thread.start()
    try:
        yield started.result(START_S)
    finally:
        loop, is_stopped = stop.result(START_S)
        if thread.is_alive():
            loop.call_soon_threadsafe(is_stopped.set)
        thread.join(START_S)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Content]:
    with content_in_thread(tmp_path_factory.mktemp("content")) as content:
        yield content


@contextmanager
def console(content: Content, data_dir: Path, *, is_login_required: bool = False) -> Iterator[TestClient]:
    settings = ConsoleSettings(
        namesrv=content.servers.namesrv, data_dir=data_dir, is_login_required=is_login_required
    )  # fmt: skip
    app = create_app(open_services(settings), extensions=ROUTERS)
    with TestClient(app, base_url="http://127.0.0.1", follow_redirects=False) as client:
        yield client


@pytest.fixture(scope="module")
def answers(content: Content, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Our answers to all requests, in the recorded order."""
    names = dict(content.names) | {"task": ""}
    found: Answers = {}
    with console(content, tmp_path_factory.mktemp("data")) as client:
        wait_until_polled(client)
        for request in (*READS, *CHANGES):
            if request.name == "charts-brokers":
                wait_until(client, "/dashboard/broker.query", {"date": times()["today"]}, lambda data: len(data) == 2)
            found[request.name] = send(client, request, names | times())
            if request.name == "messages-page":
                names["task"] = found[request.name]["body"]["data"]["taskId"]
    return found


@pytest.fixture(scope="module")
def login_answers(content: Content, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Our answers to the requests of a console that demands a log-in."""
    names = dict(content.names) | {"password": PASSWORD}
    with console(content, tmp_path_factory.mktemp("data"), is_login_required=True) as client:
        accounts = client.app.state.services.accounts  # type: ignore[attr-defined]
        accounts.add("operator", ConsoleRole.ADMIN, PASSWORD)
        accounts.add("viewer", ConsoleRole.VIEWER, PASSWORD)
        return {request.name: send(client, request, names | times()) for request in LOGIN}


def wait_until_polled(client: TestClient) -> None:
    """Wait until the live snapshot has the progress of the groups."""

    def has_progress(groups: list[dict[str, Any]]) -> bool:
        return {("audit", 0, 4), ("stock", 1, 0), ("billing", 1, 0)} <= {
            (group["group"], group["count"], group["diffTotal"]) for group in groups
        }

    wait_until(client, "/consumer/groupList.query", {}, has_progress)


def wait_until(client: TestClient, path: str, params: Mapping[str, str], is_reached: Callable[[Any], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not is_reached(client.get(path, params=params).json()["data"] or []):
        assert time.monotonic() < deadline, f"{path} is not complete after {START_S:.0f} s"
        time.sleep(0.1)


def send(client: TestClient, request: DashboardRequest, names: Mapping[str, str]) -> dict[str, Any]:
    """Send a request and return its answer in the form of the recordings."""
    params = fill(request.params, names)
    if request.body is not None:
        response = client.request(request.method, request.path, json=fill(request.body, names))
    elif request.method == "POST":
        response = client.post(request.path, data=params)
    else:
        response = client.request(request.method, request.path, params=params)
    return described(response)


def described(response: httpx.Response) -> dict[str, Any]:
    answer: dict[str, Any] = {"status": response.status_code, "contentType": response.headers.get("content-type")}
    if "location" in response.headers:
        answer["location"] = response.headers["location"]
    disposition = response.headers.get("content-disposition", "")
    if disposition.startswith("attachment"):
        return answer | {"disposition": disposition, "file": read_sheet(response.content)}
    try:
        return answer | {"body": response.json()}
    except ValueError:
        return answer | {"text": response.text}


def differences(exchange: Exchange, ours: Mapping[str, Any]) -> set[str]:
    return compare(exchange.answer, ours, allow_extra=exchange.version == OLD)


def intended(exchange: Exchange, text: str) -> list[IntendedDifference]:
    return [
        row
        for row in DIFFERENCES
        if exchange.version in row.versions and re.fullmatch(row.names, exchange.name) and re.fullmatch(row.text, text)
    ]


@pytest.mark.parametrize("exchange", recorded(), ids=lambda exchange: f"{exchange.version}-{exchange.name}")
def test_an_answer_is_that_of_the_dashboard(exchange: Exchange, answers: Answers) -> None:
    found = differences(exchange, answers[exchange.name])
    assert sorted(text for text in found if not intended(exchange, text)) == []


@pytest.mark.parametrize("exchange", recorded("-login"), ids=lambda exchange: f"{exchange.version}-{exchange.name}")
def test_a_login_is_that_of_the_dashboard(exchange: Exchange, login_answers: Answers) -> None:
    found = differences(exchange, login_answers[exchange.name])
    assert sorted(text for text in found if not intended(exchange, text)) == []


def test_every_intended_difference_occurs(answers: Answers, login_answers: Answers) -> None:
    ours = [(exchange, answers[exchange.name]) for exchange in recorded()]
    ours += [(exchange, login_answers[exchange.name]) for exchange in recorded("-login")]
    used = {
        row for exchange, answer in ours for text in differences(exchange, answer) for row in intended(exchange, text)
    }
    assert [row for row in DIFFERENCES if row not in used] == []


def test_every_request_is_recorded() -> None:
    for version in BOTH:
        requests = {request.name for request in (*READS, *CHANGES) if version in request.versions}
        assert requests == {exchange.name for exchange in recorded() if exchange.version == version}
    logins = {request.name for request in LOGIN}
    assert {(exchange.version, exchange.name) for exchange in recorded("-login")} == {
        (version, name) for version in BOTH for name in logins
    }

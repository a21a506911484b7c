"""Overview, cluster and broker with a real master and slave: pages, REST, and every form as a browser sends it."""

from __future__ import annotations

import asyncio
import contextlib
import html
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from fastapi.testclient import TestClient

from ariane.cluster.servers.broker_sets import BrokerSet, SetMember
from ariane.console.app import create_app
from ariane.console.areas.brokers.broker_changes import CleaningForm, SettingForm, change_setting, clean
from ariane.console.areas.brokers.broker_details import ServerQuery, broker_detail, broker_servers
from ariane.console.areas.brokers.runtime_figures import runtime_figures
from ariane.console.areas.overview import overview
from ariane.console.live.live_snapshot import BrokerRow, LiveSnapshot, NameServerRow
from ariane.console.services import ConsoleServices, open_services
from ariane.console.settings import ConsoleSettings
from ariane.console.texts.sparkline import spark_path
from ariane.errors import ConnectionLost, ServerUnavailable
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.pools.requester import ServerRequest
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests.routing import KvTableBody
from ariane.reports.tables.pipeline_status import SourceStatus, write_status
from ariane.tables import TRACE_REJECTS
from ariane.testing import AsyncLocalCluster
from tables_on_disk import put

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    home = tmp_path_factory.mktemp("console")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(AsyncLocalCluster(home / "servers", slaves=1)) as servers,
    ):
        (home / "tables").mkdir()
        write_status(home / "tables", SourceStatus("traces", 6_000, 3, 250, 7, "b:1"))
        settings = ConsoleSettings(namesrv=servers.namesrv, data_dir=home / "data", tables_dir=home / "tables")
        with TestClient(create_app(open_services(settings)), base_url="http://127.0.0.1") as client:
            until(client, "/api/v1/overview", lambda view: view["brokersUp"] == 2 and view["topics"] is not None)
            yield client


def get(client: TestClient, path: str, **query: Any) -> Any:
    response = client.get(path, params=query)
    assert response.status_code == 200, response.text
    return response.json()


def until(client: TestClient, path: str, condition: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not condition(view := get(client, path)):
        assert time.monotonic() < deadline, view
        time.sleep(0.05)
    return view


def submit(client: TestClient, path: str, **fields: Any) -> httpx.Response:
    return client.post(path, data=fields, headers={"HX-Request": "true"}, follow_redirects=False)


@pytest.mark.parametrize(
    "path",
    [
        "/", "/cluster", "/cluster/name-servers", "/brokers/broker-a", "/brokers/broker-a?id=1",
        "/brokers/broker-a/configuration", "/brokers/broker-a/configuration?id=1&onlyDifferent=true",
        "/brokers/broker-a/operations",
    ],
)  # fmt: skip
def test_pages_are_whole(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200, response.text
    assert "</html>" in response.text
    assert "broker-a" in response.text or path == "/cluster/name-servers"
    fragment = client.get(path, headers={"HX-Request": "true"}).text
    assert "<html" not in fragment


def test_the_overview_has_all_servers_and_the_tables_without_data(client: TestClient) -> None:
    view = get(client, "/api/v1/overview")
    assert [(row["broker"], row["brokerId"], row["isUp"]) for row in view["brokers"]] == [
        ("broker-a", 0, True),
        ("broker-a", 1, True),
    ]
    assert (view["unavailable"], view["tpsIsPartial"], view["lag"]) == ([], False, None)
    assert (view["alerts"]["total"], view["alerts"]["error"]) == (0, "")
    assert {(table["asOfMs"], table["rows"]) for table in view["tables"]} == {(None, None)}
    assert [(source["source"], source["pending"], source["caughtUpMs"]) for source in view["sources"]] == [
        ("traces", 7, None)
    ]
    page = client.get("/").text
    assert "Sources of the pipeline" in page
    assert "250" in page


def test_the_overview_shows_the_progress_of_the_pipeline(tmp_path: Path) -> None:
    put(tmp_path, TRACE_REJECTS, [{}] * 3, as_of_ms=5_000)
    write_status(tmp_path, SourceStatus("traces", 6_000, 3, 250, 7, None, caught_up_ms=4_000))
    tables, (source,) = overview._read_pipeline(tmp_path, 7_000)
    assert [(table.table, table.rows) for table in tables if table.rows is not None] == [("trace_rejects", 3)]
    assert (source.source, source.pending, source.batch_ms, source.caught_up_ms) == ("traces", 7, 250, 4_000)


def test_the_cluster_shows_the_delay_of_slaves(client: TestClient) -> None:
    view = until(
        client, "/api/v1/cluster", lambda view: view["clusters"][0]["brokers"][1]["replicationLagBytes"] is not None
    )
    (cluster,) = view["clusters"]
    master, slave = cluster["brokers"]
    assert (master["replicationDelayMs"], slave["replicationDelayMs"], slave["replicationLagBytes"]) == (None, 0, 0)
    assert [server["isUp"] for server in view["nameServers"]] == [True]


def test_settings_of_name_servers(client: TestClient) -> None:
    view = get(client, "/api/v1/cluster/name-servers")
    settings = {row["key"]: row for row in view["settings"]}
    assert settings["listenPort"]["values"] == ["0"] or settings["listenPort"]["values"][0].isdigit()
    assert not any(row["differs"] for row in view["settings"])


def test_every_figure_of_a_broker_has_a_meaning_and_a_unit(client: TestClient) -> None:
    figures = get(client, "/api/v1/brokers/broker-a")["figures"]
    assert len(figures) > 45
    assert [figure["key"] for figure in figures if not figure["meaning"]] == []
    by_key = {figure["key"]: figure for figure in figures}
    assert by_key["bootTimestamp"]["unit"] == "time"
    assert 0 < by_key["commitLogDiskRatio"]["value"] <= 1
    assert by_key["remainTransientStoreBufferNumbs"]["value"] is None


def test_figures_of_another_version_are_kept() -> None:
    table = {
        "putTps": "1.5 2 ", "getTransferredTps": "3 4 5", "getFoundTps": "1 2 ", "getTotalTps": "1.5 2.5 0.0",
        "remainHowManyDataToFlush": "1.5 KiB", "scheduleMessageOffset_10": "5,7", "scheduleMessageOffset_2": "1,1",
        "commitLogDiskRatio_/data/a": "0.5", "timerReadBehind": "3", "earliestMessageTimeStamp": "-1",
        "startAcceptSendRequestTimeStamp": "0",
    }  # fmt: skip
    figures = {figure.key: figure for figure in runtime_figures(table)}
    assert list(figures) == [
        "startAcceptSendRequestTimeStamp", "putTps", "getTransferredTps", "getTotalTps", "getFoundTps",
        "earliestMessageTimeStamp", "remainHowManyDataToFlush", "commitLogDiskRatio_/data/a", "scheduleMessageOffset_2",
        "scheduleMessageOffset_10", "timerReadBehind",
    ]  # fmt: skip
    assert figures["putTps"].values == [1.5, 2.0, None]
    assert figures["getTotalTps"].values == [1.5, 2.5, None]
    assert figures["getTransferredTps"].values == [3.0, 4.0, 5.0]
    assert figures["remainHowManyDataToFlush"].value == 1536
    assert figures["scheduleMessageOffset_10"].values == [5.0, 7.0]
    assert figures["commitLogDiskRatio_/data/a"].value == 0.5
    assert (figures["timerReadBehind"].meaning, figures["timerReadBehind"].text) == ("", "3")
    assert figures["earliestMessageTimeStamp"].value is None
    assert figures["startAcceptSendRequestTimeStamp"].value is None


def test_figures_that_cannot_be_shown_as_numbers_are_shown_as_texts() -> None:
    level, long = "scheduleMessageOffset_" + "1" * 5_000, "9" * 400
    table = {
        level: "5,7",
        "scheduleMessageOffset_1": f"nan,{long}",
        "putTps": f"inf {long} 2",
        "commitLogMaxOffset": long,
    }
    table |= {"remainHowManyDataToFlush": "1..5 KiB", "putMessageAverageSize": "nan"}
    figures = {figure.key: figure for figure in runtime_figures(table)}
    assert (figures[level].unit, figures[level].text) == ("text", "5,7")
    assert figures["scheduleMessageOffset_1"].values == [None, None]
    assert figures["putTps"].values == [None, None, 2.0]
    assert {
        figures[key].value for key in ("commitLogMaxOffset", "remainHowManyDataToFlush", "putMessageAverageSize")
    } == {None}


class MasterIsGone:
    """The snapshot of a broker whose slave is the only server that the name servers list."""

    async def snapshot(self, wait_s: float = 0) -> LiveSnapshot:
        return LiveSnapshot(
            as_of_ms=1, brokers=(BrokerRow(cluster="c", broker="a", broker_id=1, addr="a:2", is_up=True),)
        )


class ExceededLimits(ConnectionPool):
    """Reports limits that were exceeded."""

    async def exchange(self, request: ServerRequest) -> Command:
        assert request.code == RequestCode.GET_BROKER_RUNTIME_INFO
        table = {"exceededLimits": "serverTopicsMax 2, addressRequestsPerSecond 5", "brokerVersionDesc": "V4_9_4"}
        totals = [f"msg{kind}TotalToday{time}" for kind in ("Put", "Get") for time in ("Now", "Morning")]
        table |= dict.fromkeys(["bootTimestamp", *totals], "1")
        return Command(0, 0, 1, None, None, fastjson.write(KvTableBody(table)))


def test_exceeded_limits_are_shown(tmp_path: Path) -> None:
    settings = ConsoleSettings(namesrv="ns:1", data_dir=tmp_path)
    services = ConsoleServices(settings=settings, peers=ExceededLimits(), live=MasterIsGone())
    view = asyncio.run(broker_detail(services, "a", ServerQuery()))
    assert view.exceeded_limits == "serverTopicsMax 2, addressRequestsPerSecond 5"
    figure = next(figure for figure in view.figures if figure.key == "exceededLimits")
    assert (figure.section, figure.text) == ("Limits", view.exceeded_limits)
    assert figure.meaning


class ExpiringCertificates:
    """The snapshot of servers whose certificates expire, or are open to other machines."""

    async def snapshot(self, wait_s: float = 0) -> LiveSnapshot:
        master = BrokerRow(cluster="c", broker="a", broker_id=0, addr="a:1", is_up=True, certificate_days=12)
        names = NameServerRow("ns:1", True, "anyone can register brokers", -1), NameServerRow("ns:2", True, "", 300)
        return LiveSnapshot(as_of_ms=1, brokers=(master,), name_servers=names)


def test_certificates_that_expire_are_shown(tmp_path: Path) -> None:
    settings = ConsoleSettings(namesrv="ns:1", data_dir=tmp_path)
    services = ConsoleServices(settings=settings, peers=NoServers(), live=ExpiringCertificates())
    with TestClient(create_app(contextlib.nullcontext(services)), base_url="http://127.0.0.1") as client:
        cluster, broker, names = (client.get(path).text for path in ("/cluster", "/brokers/a", "/cluster/name-servers"))
        chinese = client.get("/brokers/a", headers={"Accept-Language": "zh"}).text
    assert '<span class="badge badge-warning" title="expires in 12 days">certificate: 12 d</span>' in cluster
    assert '<span class="badge badge-danger">certificate expired</span>' in cluster
    assert '<span class="badge badge-warning" title="anyone can register brokers">insecure</span>' in cluster
    assert "TLS certificate of a: expires in 12 days. Replace the files" in broker
    assert "a 的 TLS 证书将在 12 天后过期。" in chinese
    assert "TLS certificate of ns:1: expired." in names
    assert "ns:1 is open to other machines: anyone can register brokers" in names
    assert "TLS certificate of ns:2" not in names and cluster.count("badge-danger") == 1


class BrokerSetLive:
    """The snapshot of a broker set whose master, if it has one, is m1."""

    def __init__(self, role: str) -> None:
        self._role = role

    async def snapshot(self, wait_s: float = 0) -> LiveSnapshot:
        rows = tuple(
            BrokerRow(cluster="c", broker="a", broker_id=number, addr=f"a:{number}", is_up=True) for number in (0, 2)
        )
        members = (
            SetMember("m1", "a:0", self._role, 7, 900, ""),
            SetMember("m2", "a:2", "RECONCILING", 6, 388, "<late>"),
        )
        return LiveSnapshot(as_of_ms=1, brokers=rows, broker_sets={"a": BrokerSet("a", members, ("m1",))})


@pytest.mark.parametrize("path", ["/cluster", "/brokers/a"])
def test_members_of_a_broker_set_are_shown(tmp_path: Path, path: str) -> None:
    settings = ConsoleSettings(namesrv="ns:1", data_dir=tmp_path)

    def page(role: str) -> tuple[str, Any]:
        services = ConsoleServices(settings=settings, peers=NoServers(), live=BrokerSetLive(role))
        with TestClient(create_app(contextlib.nullcontext(services)), base_url="http://127.0.0.1") as client:
            view = get(client, f"/api/v1{path}")
            return client.get(path).text, view["brokerSet"] if path != "/cluster" else view["clusters"][0][
                "brokerSets"
            ][0]

    text, brokers = page("MASTER")
    assert (brokers["master"], brokers["inSync"]) == ("m1", ["m1"])
    late = brokers["members"][1]
    assert (late["role"], late["epoch"], late["isInSync"], late["lagBytes"]) == ("RECONCILING", 6, False, 512)
    row = text.partition('id="member-a-m2"')[2].partition("</tr>")[0]
    assert [part in row for part in ("compares its log", "badge-warning", "&lt;late&gt;", "512")] == [True] * 4
    assert "is its master" not in text
    text, brokers = page("HOLDING")
    assert (brokers["master"], brokers["members"][1]["lagBytes"]) == (None, None)
    assert "No member of the broker set a is its master" in text


def test_the_days_of_a_certificate_are_a_figure_with_a_meaning() -> None:
    (figure,) = runtime_figures({"certificateRemainingDays": "-3"})
    assert (figure.section, figure.value, figure.unit) == ("Identity", -3.0, "count")
    assert figure.meaning


def test_a_change_of_a_master_never_reaches_its_slave(tmp_path: Path) -> None:
    async def run() -> None:
        settings = ConsoleSettings(namesrv="ns:1", data_dir=tmp_path)
        services = ConsoleServices(settings=settings, peers=NoServers(), live=MasterIsGone())
        for form in (SettingForm(key="k", value="v"), SettingForm(key="k", value="v", is_dry_run=True)):
            with pytest.raises(ServerUnavailable, match="no master of a is registered"):
                await change_setting(services, "a", form)
        with pytest.raises(ServerUnavailable, match="no master of a is registered"):
            await clean(services, "a", CleaningForm(operation="unused-topics", confirm="a"))
        # The slave itself, and all servers of the name, are still changed on request.
        for form in (SettingForm(key="k", value="v", id=1), SettingForm(key="k", value="v", scope="broker")):
            with pytest.raises(ServerUnavailable, match="a:2"):
                await change_setting(services, "a", form)

    asyncio.run(run())


def test_the_page_of_operations_sends_no_request(tmp_path: Path) -> None:
    services = ConsoleServices(
        settings=ConsoleSettings(namesrv="ns:1", data_dir=tmp_path), peers=NoServers(), live=MasterIsGone()
    )
    view = asyncio.run(broker_servers(services, "a", ServerQuery()))
    assert (view.server.addr, len(view.servers), view.as_of_ms, view.unavailable) == ("a:2", 1, 1, [])


class NoServers(ConnectionPool):
    """Refuses all connections."""

    async def exchange(self, request: ServerRequest) -> Command:
        raise ConnectionLost(request.addr, "refused")


def test_settings_are_searched_and_compared(client: TestClient) -> None:
    path = "/api/v1/brokers/broker-a/configuration"
    different = get(client, path, onlyDifferent=True)
    rows = {row["key"]: row for row in different["settings"]["items"]}
    assert different["compared"] == 1
    assert rows["brokerId"]["value"] == "0"
    assert rows["brokerId"]["differing"] == [{"broker": "broker-a", "brokerId": 1, "value": "1"}]
    assert "brokerName" not in rows
    found = get(client, path, q="reservedtime")["settings"]
    assert [row["key"] for row in found["items"]] == ["cutReservedTime", "fileReservedTime"]


def test_a_setting_is_changed_on_master_and_slave(client: TestClient) -> None:
    path, api = "/brokers/broker-a/configuration", "/api/v1/brokers/broker-a/configuration"

    def value(broker_id: int) -> str:
        rows = get(client, api, q="maxMessageSize", id=broker_id)["settings"]["items"]
        return str(rows[0]["value"])

    fields = {"key": "maxMessageSize", "value": "4194305", "scope": "broker", "id": "0"}
    dry = submit(client, path, **fields, isDryRun="true")
    assert dry.headers["HX-Retarget"] == "#result"
    assert "would set maxMessageSize from 4194304 to 4194305" in html.unescape(dry.text)
    assert (value(0), value(1)) == ("4194304", "4194304")
    done = submit(client, path, **fields)
    assert done.headers.get("HX-Redirect") == path, done.text
    assert (value(0), value(1)) == ("4194305", "4194305")
    back = client.post(api, json={"key": "maxMessageSize", "value": "4194304", "id": 1})
    assert back.json()["changes"] == [f"set maxMessageSize = 4194304 on {_addr(client, 1)}"]
    assert (value(0), value(1)) == ("4194305", "4194304")


def test_an_unknown_setting_is_refused_with_similar_ones(client: TestClient) -> None:
    response = client.post("/api/v1/brokers/broker-a/configuration", json={"key": "fileReservedTimes", "value": "1"})
    assert response.status_code == 422
    assert "did you mean fileReservedTime" in response.json()["error"]


@pytest.mark.parametrize("operation", ["expired-queues", "expired-commit-log", "unused-topics"])
def test_cleaning_needs_the_typed_name(client: TestClient, operation: str) -> None:
    path = "/brokers/broker-a/clean"
    assert submit(client, path, operation=operation, confirm="broker-b").status_code == 422
    dry = submit(client, path, operation=operation, isDryRun="true")
    assert "would delete" in dry.text
    assert submit(client, path, operation=operation, confirm="broker-a").headers["HX-Redirect"].endswith("/operations")


def test_the_write_permission_is_removed_and_restored(client: TestClient) -> None:
    path = "/api/v1/brokers/broker-a/write-permission"
    assert client.post(path, json={"isWritable": False, "isDryRun": True}).json()["isDryRun"]
    removed = client.post(path, json={"isWritable": False}).json()
    assert removed["notice"].startswith("removed the write permission of broker-a: ")
    restored = submit(client, "/brokers/broker-a/write-permission", isWritable="true")
    assert restored.headers["HX-Redirect"] == "/brokers/broker-a/operations"


@pytest.mark.parametrize("path", ["/brokers/none", "/brokers/broker-a?id=7", "/brokers/none/configuration"])
def test_an_unknown_server_is_not_found(client: TestClient, path: str) -> None:
    response = client.get(f"/api/v1{path}")
    assert response.status_code == 404
    assert "none" in response.json()["error"] or "7" in response.json()["error"]


def _addr(client: TestClient, broker_id: int) -> str:
    servers = get(client, "/api/v1/brokers/broker-a")["servers"]
    return str(servers[broker_id]["addr"])


def test_curves_have_gaps_where_values_are_unknown() -> None:
    hour = 3_600_000
    assert spark_path([(0, 0.0), (hour, 2.0)]) == "M0.0 22.5L100.0 1.5"
    assert spark_path([(0, 1.0), (5, None), (hour, 1.0)]) == "M0.0 1.5M100.0 1.5"
    assert spark_path([(0, 1.0)]) == spark_path([]) == ""
    assert spark_path([(0, 0.0), (hour, 0.0)]) == "M0.0 22.5L100.0 22.5"
    assert spark_path([(0, 1.0), (hour // 4, 1.0)]) == "M75.0 1.5L100.0 1.5", "of a console that started 15 minutes ago"

"""Record answers of rocketmq-dashboard. A developer runs it by hand; the tests replay the recordings without Java.

    python tests/console/record_dashboards.py 1.0.0 rocketmq-dashboard-1.0.0.jar

Build a jar from Apache's source at the tag: `mvn package -DskipTests` with the steps of the front end skipped. Answers are
stored as they are, except that the directory of the cluster becomes `/cluster`, the process ids and addresses of the machine
become `PID` and `192.0.2.1`, and of an Excel file its cells.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dashboard_content import Content, dashboard_content
from dashboard_requests import CHANGES, LOGIN, READS, DashboardRequest, fill, times
from excel_cells import read_sheet

RECORDINGS = Path(__file__).with_name("dashboard_recordings")
READY_S = 120
TIMEOUT_S = 60
PASSWORD = "recorded-1234"
USERS = f"operator={PASSWORD},1\nviewer={PASSWORD}\n"
# In 2.1.0 the numbers of the roles are reversed.
USERS_NEW = f"operator={PASSWORD},1\nviewer={PASSWORD}\n"
OPENS = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
)


def own_addresses() -> set[str]:
    """Return the addresses by which this machine is known to others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return {probe.getsockname()[0], socket.gethostname()} - {"127.0.0.1", "localhost"}


class Recorder:
    """One running dashboard whose answers are recorded."""

    def __init__(self, version: str, port: int, content: Content, home: Path) -> None:
        self.version = version
        self.port = port
        self.home = home  # replaced in answers
        self.names = dict(content.names)
        self.names |= {"password": PASSWORD, "task": ""}
        self.cookie = ""
        self.entries: dict[str, list[dict[str, Any]]] = {}

    def record(self, requests: Iterable[DashboardRequest]) -> None:
        for request in requests:
            if self.version in request.versions:
                self.names |= times()
                answer = self.send(request)
                self._learn(request, answer)
                sent = {"method": request.method, "path": request.path}
                sent |= {"params": fill(request.params, self.names)} if request.params else {}
                sent |= {"body": fill(request.body, self.names)} if request.body is not None else {}
                entry = {"name": request.name, "request": sent, "answer": answer}
                self.entries.setdefault(request.area, []).append(json.loads(self._clean(json.dumps(entry))))
                print(request.name, str(answer)[:150], flush=True)

    def send(self, request: DashboardRequest) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        params = urllib.parse.urlencode(fill(request.params, self.names))
        path, body, headers = request.path, None, {"Cookie": self.cookie} if self.cookie else {}
        if request.body is not None:
            body, headers["Content-Type"] = json.dumps(fill(request.body, self.names)), "application/json"
        elif request.method == "POST":
            body, headers["Content-Type"] = params, "application/x-www-form-urlencoded"
        elif params:
            path += f"?{params}"
        try:
            connection.request(request.method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except TimeoutError:
            return {"fault": f"no answer within {TIMEOUT_S} s"}
        finally:
            connection.close()
        if cookie := response.getheader("Set-Cookie"):
            self.cookie = cookie.split(";")[0]
        answer: dict[str, Any] = {"status": response.status, "contentType": response.getheader("Content-Type")}
        if location := response.getheader("Location"):
            answer["location"] = location
        disposition = response.getheader("Content-Disposition", "")
        if disposition.startswith("attachment"):
            return answer | {"disposition": disposition, "file": read_sheet(content)}
        try:
            return answer | {"body": json.loads(content)}
        except ValueError:
            return answer | {"text": content.decode(errors="replace")}

    def _learn(self, request: DashboardRequest, answer: dict[str, Any]) -> None:
        """Keep ids that later requests contain."""
        data = answer["body"].get("data") if isinstance(answer.get("body"), dict) else None
        if request.name == "messages-page" and data:
            self.names["task"] = data["taskId"]

    def _clean(self, text: str) -> str:
        text = text.replace(str(self.home), "/cluster").replace(f":{self.port}", ":8080")
        for address in own_addresses():
            text = text.replace(address, "192.0.2.1")
        return re.sub(r"@\d+(?=[#\"@])", "@PID", text)

    def store(self, suffix: str = "") -> None:
        directory = RECORDINGS / self.version
        directory.mkdir(parents=True, exist_ok=True)
        for area, entries in self.entries.items():
            text = json.dumps(entries, indent=1, ensure_ascii=False) + "\n"
            (directory / f"{area}{suffix}.json").write_text(text)


def start(version: str, jar: Path, port: int, content: Content, data: Path, *, login: bool) -> subprocess.Popen[bytes]:
    data.mkdir()
    (data / "users.properties").write_text(USERS if version == "1.0.0" else USERS_NEW)
    namesrv = "rocketmq.config.namesrvAddr" if version == "1.0.0" else "rocketmq.config.namesrvAddrs[0]"
    settings = {
        namesrv: content.servers.namesrv,
        "server.port": str(port),
        "server.address": "127.0.0.1",
        "rocketmq.config.dataPath": str(data),
        "rocketmq.config.loginRequired": str(login).lower(),
        "rocketmq.config.isVIPChannel": "false",
    }
    command = ["java", "-Xmx512m", f"-Duser.home={data}", f"-Djava.io.tmpdir={data}", *OPENS, "-jar", str(jar)]
    command += [f"--{key}={value}" for key, value in settings.items()]
    with (data / "output.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=data)
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit((data / "output.log").read_text()[-3000:])
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.5)
        else:
            return process
    process.kill()
    sys.exit(f"rocketmq-dashboard {version} is not ready after {READY_S} s")


def record(version: str, jar: Path, content: Content, home: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for login in (True, False):
        started = time.monotonic()
        process = start(version, jar, port, content, home / f"data-{login}", login=login)
        try:
            recorder = Recorder(version, port, content, home)
            recorder.record(LOGIN if login else READS)
            if not login:
                # The collectors of the charts run once a minute.
                time.sleep(max(0.0, started + 125 - time.monotonic()))
                recorder.record(CHANGES)
            recorder.store("-login" if login else "")
        finally:
            process.terminate()
            process.wait(30)


async def main(version: str, jar: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        async with dashboard_content(home / "store") as content:
            await asyncio.to_thread(record, version, jar.resolve(), content, home)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))

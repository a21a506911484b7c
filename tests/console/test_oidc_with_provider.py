"""Log-in at a real provider on this machine: `oidc-provider` from npm, which is certified for OpenID Connect."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient

from ariane.console.app import create_app
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings

VERSION = "9.13.3"
SCRIPT = Path(__file__).with_name("oidc_provider.mjs")
BASE = "http://127.0.0.1:8080"
CALLBACK = f"{BASE}/login/oidc/callback"
INSTALL_S = 120  # of npm


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """Start the provider, and yield its URL."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("needs Node.js with npm")
    home = Path(tempfile.gettempdir()) / f"ariane-oidc-provider-{VERSION}"
    if not (home / "node_modules" / "oidc-provider" / "package.json").exists():
        home.mkdir(exist_ok=True)
        command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(home)]
        done = subprocess.run(
            [*command, f"oidc-provider@{VERSION}"], capture_output=True, timeout=INSTALL_S, check=False
        )
        if done.returncode:
            pytest.skip(
                f"needs oidc-provider {VERSION} of npm, which could not be installed: {done.stderr.decode()[-200:]}"
            )
    script = home / SCRIPT.name  # Node looks for packages where the script is
    script.write_bytes(SCRIPT.read_bytes())
    with subprocess.Popen(
        [node, str(script), CALLBACK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        try:
            yield program.stdout.readline().strip()
        finally:
            program.kill()


@pytest.fixture
def client(issuer: str, tmp_path: Path) -> Iterator[TestClient]:
    (tmp_path / "secret").write_text("provider-secret\n")
    (tmp_path / "oidc.toml").write_text(
        f'issuer = "{issuer}"\nclient_id = "console"\nclient_secret_file = "{tmp_path}/secret"\n'
        f'console_url = "{BASE}"\nname = "Company"\nscopes = ["openid", "profile"]\n[roles]\noperator = ["staff"]\n'
    )
    app = create_app(open_services(ConsoleSettings(namesrv="127.0.0.1:1", data_dir=tmp_path)))
    with TestClient(app, base_url=BASE, follow_redirects=False) as client:
        yield client


def log_in(client: TestClient, name: str) -> httpx.Response:
    """Log in as a browser does, through the provider's pages, and return the answer to the callback."""
    url = client.get("/login/oidc", params={"next": "/topics"}).headers["location"]
    with httpx.Client(follow_redirects=False, trust_env=False) as browser:
        answer = browser.get(url)
        for _ in range(12):
            if (location := urljoin(str(answer.url), answer.headers.get("location", ""))).startswith(CALLBACK):
                query: Any = parse_qsl(urlsplit(location).query)
                return client.get("/login/oidc/callback", params=query)
            if answer.is_redirect:
                answer = browser.get(location)
                continue
            match = re.search(r'action="([^"]+)"', answer.text)
            assert match, answer.text
            prompt = re.search(r'name="prompt" value="(\w+)"', answer.text)
            assert prompt, answer.text
            form = {"prompt": prompt[1], "login": name, "password": "any"}
            answer = browser.post(urljoin(str(answer.url), match[1]), data=form)
    raise AssertionError(f"the provider did not return to the console: {answer.status_code} {answer.text[:500]}")


def test_an_account_of_a_real_provider_logs_in_with_the_role_of_its_group(client: TestClient) -> None:
    answer = log_in(client, "alice")
    assert (answer.status_code, answer.headers.get("location")) == (303, "/topics"), answer.text
    account = client.get("/api/v1/account").json()
    assert (account["name"], account["role"]) == ("oidc:alice", "operator")


def test_an_account_without_a_group_is_refused(client: TestClient) -> None:
    answer = log_in(client, "bob")
    assert answer.status_code == 401
    assert "oidc:bob has no role" in answer.text


def test_a_code_is_accepted_once(client: TestClient) -> None:
    answer = log_in(client, "alice")
    query = parse_qsl(str(answer.request.url.query, "ascii"))
    assert client.get("/login/oidc/callback", params=dict(query)).status_code == 401

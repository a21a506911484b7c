"""Certificates of this machine: created once, private, renewed in time; and the commands that show them."""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ariane.cli.main import app
from ariane.errors import ConfigError
from ariane.net.listening import certificates, local_authority
from tls_files import utc_now

NOW = utc_now()


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["tls", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_files_are_created_once_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    directory = tmp_path / "tls"
    first = local_authority.ensure(directory, NOW)
    assert sorted(path.name for path in directory.iterdir()) == ["ca.key", "ca.pem", "server.key", "server.pem"]
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    before = {path: path.read_bytes() for path in directory.iterdir()}
    assert first.is_new and not local_authority.ensure(directory, NOW + timedelta(days=300)).is_new
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


@pytest.mark.parametrize("reason", ["expires", "name", "lost"])
def test_a_certificate_is_replaced_under_the_same_authority(tmp_path: Path, reason: str) -> None:
    files = local_authority.ensure(tmp_path, NOW)
    authority, former = files.ca.read_bytes(), files.cert.read_bytes()
    if reason == "lost":
        files.key.unlink()
    later = NOW + timedelta(days=340 if reason == "expires" else 1)
    names = (*local_authority.LOCAL_NAMES, "broker.example") if reason == "name" else local_authority.LOCAL_NAMES
    assert local_authority.ensure(tmp_path, later, names).is_new
    assert files.ca.read_bytes() == authority and files.cert.read_bytes() != former
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(files.cert, files.key)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    (tmp_path / "ca.key").write_text("nothing")
    with pytest.raises(ConfigError, match="contains a file that is neither a certificate nor a key"):
        local_authority.ensure(tmp_path, NOW)
    with pytest.raises(ConfigError, match="directory = '.*': .*ca.pem.*: Not a directory"):
        local_authority.ensure(tmp_path / "ca.pem" / "x", NOW)


def test_the_commands_create_and_show(tmp_path: Path) -> None:
    created = run("create", "--directory", str(tmp_path), "--name", "broker.example", "--name", "10.0.0.5")
    assert f"tls.server.certPath={tmp_path / 'server.pem'}" in created
    assert f"export ARIANE_TLS=true ARIANE_TLS_CA_FILE={tmp_path / 'ca.pem'}" in created
    shown = run("show", str(tmp_path / "server.pem"))
    assert "CN=broker.example" in shown and "names       broker.example, 10.0.0.5" in shown
    assert "364 days left" in shown
    with pytest.raises(ConfigError, match="is not a certificate in PEM"):
        CliRunner().invoke(app, ["tls", "show", str(tmp_path / "ca.key")], catch_exceptions=False)


def test_an_expired_certificate_says_so() -> None:
    pair = certificates.create("old", NOW - timedelta(days=9), days=2)
    validity = certificates.summarize(pair.certificate).validity
    assert (validity.fault(NOW) or "").startswith("expired on ")
    assert (validity.fault(NOW - timedelta(days=20)) or "").startswith("is not valid before ")
    assert validity.fault(NOW - timedelta(days=8)) is None

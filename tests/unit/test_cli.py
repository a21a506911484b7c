"""The command line without a server: settings, errors as one line, homes, and what a start may load."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ariane.cli import home as homes
from ariane.cli import main
from ariane.errors import ConfigError


def test_broker_prints_its_settings_and_reports_keys_without_effect(tmp_path: Path):
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=b-1\nlistenPort=12345\nnoSuchKey=1\nsendMessageThreadPoolNums=4\n", encoding="utf-8")
    done = CliRunner().invoke(main.app, ["broker", "-c", str(conf), "-n", "10.0.0.1:9876", "--port", "0", "-p"])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert {"brokerName=b-1", "listenPort=0", "namesrvAddr=10.0.0.1:9876"} <= set(lines)
    assert "noSuchKey is unknown and ignored" in done.stderr
    assert "sendMessageThreadPoolNums has no effect" in done.stderr


def test_name_server_prints_its_settings(tmp_path: Path):
    conf = tmp_path / "namesrv.conf"
    conf.write_text("listenPort=12345\nnoSuchKey=1\n", encoding="utf-8")
    done = CliRunner().invoke(main.app, ["namesrv", "-c", str(conf), "-p"])
    assert done.exit_code == 0
    assert "listenPort=12345" in done.stdout.splitlines()
    assert "noSuchKey is unknown and ignored" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["broker", "-c", "no/such/file"], "no/such/file"),
        (["up", "--exit"], "goes with --demo"),
        (["trace"], "give one of --key KEY, --id ID and --topic TOPIC"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_1(arguments, said, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ariane", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.run()
    told = capsys.readouterr().err
    assert ended.value.code == 1
    assert told.startswith("ariane: ")
    assert said in told
    assert len(told.splitlines()) == 1


def test_the_table_of_commands_loads_nothing_heavy():
    program = "import sys, ariane.cli.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    heavy = ("pyspark", "pyarrow", "numpy", "ariane.broker.broker", "ariane.client.producer", "ariane.spark.source")
    assert [name for name in heavy if name in loaded] == []


def test_a_home_is_held_by_one_at_a_time(tmp_path: Path):
    with homes.held(tmp_path / "h"), pytest.raises(ConfigError, match="runs there already"), homes.held(tmp_path / "h"):
        pass
    with homes.held(tmp_path / "h"):
        assert (tmp_path / "h" / "up.pid").read_text(encoding="ascii").strip().isdigit()


@pytest.fixture
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_of_a_demo_only_the_tables_stay_until_the_next(temporary_files: Path):
    with homes.temporary() as first:
        for name in (homes.TABLES, "store", "logs"):
            (first / name).mkdir()
        (first / "broker.pid").write_text("1\n", encoding="ascii")
    assert {entry.name for entry in first.iterdir()} == {homes.TABLES, "up.pid"}
    with homes.temporary() as second:
        assert not first.exists()
        assert homes.demo_homes() == [second]


def test_a_demo_that_failed_keeps_everything(temporary_files: Path):
    def fails() -> None:
        with homes.temporary() as home:
            (home / "logs").mkdir()
            raise ConfigError("x", 1, "y")

    with pytest.raises(ConfigError):
        fails()
    (home,) = homes.demo_homes()
    assert (home / "logs").is_dir()


def test_a_demo_leaves_the_home_of_a_running_one_alone(temporary_files: Path):
    with homes.temporary() as first, homes.temporary() as second:
        assert first.is_dir()
        assert set(homes.demo_homes()) == {first, second}

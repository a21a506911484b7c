"""The command line without a server: settings, one-line errors, homes, and modules loaded at start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ariane.cli import main
from ariane.cli.options import paths as homes
from ariane.errors import ConfigError, StoreError


def test_broker_prints_its_settings_and_reports_keys_without_effect(tmp_path: Path):
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=b-1\nlistenPort=12345\nnoSuchKey=1\nsendMessageThreadPoolNums=4\n", encoding="utf-8")
    done = CliRunner().invoke(main.app, ["broker", "-c", str(conf), "-n", "10.0.0.1:9876", "--port", "0", "-p"])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert {"brokerName=b-1", "listenPort=0", "namesrvAddr=10.0.0.1:9876"} <= set(lines)
    assert "Unknown key 'noSuchKey' has no effect" in done.stderr
    assert "sendMessageThreadPoolNums has no effect" in done.stderr


def test_name_server_prints_its_settings(tmp_path: Path):
    conf = tmp_path / "namesrv.conf"
    conf.write_text("listenPort=12345\nnoSuchKey=1\n", encoding="utf-8")
    done = CliRunner().invoke(main.app, ["namesrv", "-c", str(conf), "-p"])
    assert done.exit_code == 0
    assert "listenPort=12345" in done.stdout.splitlines()
    assert "Unknown key 'noSuchKey' has no effect" in done.stderr


def test_a_process_loads_its_own_command_and_no_large_dependency():
    program = """if True:
        import sys
        from ariane.cli import command_table
        command_table.application_of(["cat", "orders"])
        print(*sys.modules)
        command_table.application_of(["--help"])
        print(*sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, all_commands = done.stdout.splitlines()
    heavy = ("pyspark", "pyarrow", "numpy", "ariane.broker.broker", "ariane.client.producer", "ariane.spark.source")
    assert [name for name in heavy if name in all_commands.split()] == []
    assert "ariane.cli.servers.broker_command" in all_commands.split()
    assert [name for name in first.split() if name.endswith("_command")] == ["ariane.cli.messages.cat_command"]


def test_a_home_is_locked_by_one_process_at_a_time(tmp_path: Path):
    with (
        homes.locked_home(tmp_path / "h"),
        pytest.raises(ConfigError, match="already running there"),
        homes.locked_home(tmp_path / "h"),
    ):
        pass
    with homes.locked_home(tmp_path / "h"):
        assert (tmp_path / "h" / "up.pid").read_text(encoding="ascii").strip().isdigit()


@pytest.fixture
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default home, which nothing was stored in yet."""
    home = tmp_path_factory.mktemp("user") / "ariane"
    monkeypatch.setenv("ARIANE_HOME", str(home))
    return home


def make_demo(place: Path) -> Path:
    with homes.temporary_home() as demo:
        (demo / homes.TABLES).mkdir()
    return demo


def test_demo_tables_are_never_read_in_place_of_the_default_homes(own: Path, temporary_files: Path):
    (own / homes.TABLES).mkdir(parents=True)
    make_demo(temporary_files)  # newer than the default home's
    assert homes.existing_tables_dir(None) == own / homes.TABLES


def test_a_home_without_tables_suggests_the_demos_home_and_does_not_read_it(own: Path, temporary_files: Path):
    with homes.locked_home(own):
        pass
    demo = make_demo(temporary_files)
    with pytest.raises(StoreError, match=f"(?s)no tables in {own / homes.TABLES}: run .*--home {demo}$") as ended:
        homes.existing_tables_dir(None)
    assert "A demo that ended has tables of its own cluster" in str(ended.value)
    with (
        homes.locked_home(demo),
        pytest.raises(StoreError, match=f"another process .pid {os.getpid()}. has tables.*{demo}$"),
    ):
        homes.existing_tables_dir(None)


def test_missing_tables_are_reported_with_what_the_pipeline_needs(own: Path, temporary_files: Path):
    with pytest.raises(StoreError, match=r"run `ariane pipeline run all` \(needs Spark: Java 17 or newer"):
        homes.existing_tables_dir(None)
    (own / homes.TABLES).mkdir(parents=True)
    status = CliRunner().invoke(main.app, ["pipeline", "status"])
    assert isinstance(status.exception, StoreError)
    assert "(needs Spark: Java 17 or newer" in str(status.exception)


def test_the_last_demos_home_is_the_default_until_a_default_home_exists(own: Path, temporary_files: Path):
    demo = make_demo(temporary_files)
    assert homes.existing_tables_dir(None) == demo / homes.TABLES
    with pytest.raises(StoreError, match="no tables in"):
        homes.existing_tables_dir(own)


def test_home_is_resolved_in_the_same_way_for_tables_and_archive(own: Path, tmp_path: Path):
    assert homes.tables_dir(None) == homes.tables_dir(own) == own / homes.TABLES
    assert homes.archive_dir(None) == homes.archive_dir(own) == own / homes.ARCHIVE
    with homes.locked_home(tmp_path / "up") as up:
        assert homes.tables_dir(up) == up / homes.TABLES
        assert homes.archive_dir(up) == up / homes.ARCHIVE
    other = tmp_path / "link"
    other.symlink_to(own.parent)
    assert homes.tables_dir(other / own.name) == other / own.name / homes.TABLES, "another path of the default home"
    plain = tmp_path / "plain"
    assert homes.tables_dir(plain) == homes.archive_dir(plain) == plain
    (plain / "journeys").mkdir(parents=True)
    (plain / "journeys" / "CURRENT").touch()
    with homes.locked_home(plain):
        assert homes.tables_dir(plain) == plain, "tables that are there already are not lost"


def test_only_the_tables_of_a_demo_are_retained_until_the_next_one(temporary_files: Path):
    with homes.temporary_home() as first:
        for name in (homes.TABLES, "store", "logs"):
            (first / name).mkdir()
        (first / "broker.pid").write_text("1\n", encoding="ascii")
    assert {entry.name for entry in first.iterdir()} == {homes.TABLES, "up.pid"}
    with homes.temporary_home() as second:
        assert not first.exists()
        assert homes.demo_homes() == [second]


def test_a_failed_demo_retains_all_files(temporary_files: Path):
    def fails() -> None:
        with homes.temporary_home() as home:
            (home / "logs").mkdir()
            raise ConfigError("x", 1, "y")

    with pytest.raises(ConfigError):
        fails()
    (home,) = homes.demo_homes()
    assert (home / "logs").is_dir()


def test_a_demo_does_not_remove_the_home_of_a_running_demo(temporary_files: Path):
    with homes.temporary_home() as first, homes.temporary_home() as second:
        assert first.is_dir()
        assert set(homes.demo_homes()) == {first, second}

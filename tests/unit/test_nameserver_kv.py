"""The KV table: bounds, and one write for many changes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from unittest import mock

import pytest

from ariane.errors import ConfigError, ProtocolError, StoreError
from ariane.nameserver import kv_store
from ariane.nameserver.kv_store import KvStore


def test_simultaneous_changes_share_one_write(tmp_path: Path) -> None:
    async def run() -> None:
        table = KvStore(tmp_path / "kv.json")
        with mock.patch.object(table, "_write", wraps=table._write) as write:

            async def put(number: int) -> None:
                table.put("NS", f"k{number}", "v")
                await table.wait_saved()

            await asyncio.gather(*(put(number) for number in range(1000)))
        assert write.call_count <= 2
        table.close()

    asyncio.run(run())
    assert len(json.loads((tmp_path / "kv.json").read_text())["configTable"]["NS"]) == 1000


def test_changes_whose_requests_are_cancelled_cost_the_same_however_many_wait(tmp_path: Path) -> None:
    """A connection that is lost may have 16,384 of them, and a lock looks for each in the list of all others."""
    compared = 0

    class Compared(asyncio.Future[None]):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return self is other

        __hash__ = asyncio.Future.__hash__

    async def run() -> None:
        loop, table = asyncio.get_running_loop(), KvStore(tmp_path / "kv.json")
        with mock.patch.object(loop, "create_future", lambda: Compared(loop=loop)):

            async def put(number: int) -> None:
                table.put("NS", f"k{number}", "v")
                await table.wait_saved()

            puts = [asyncio.ensure_future(put(number)) for number in range(100)]
            await asyncio.sleep(0)
            for task in reversed(puts[1:]):
                task.cancel()
            await asyncio.wait(puts)
        await table.wait_saved()
        table.close()

    asyncio.run(run())
    assert compared < 10
    assert len(json.loads((tmp_path / "kv.json").read_text())["configTable"]["NS"]) == 100


def test_a_change_that_cannot_be_written_is_an_error_and_is_written_later(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "not a directory").write_text("")
        table = KvStore(tmp_path / "not a directory" / "kv.json")
        table.put("NS", "k", "v")
        with pytest.raises(StoreError, match=r"kv\.json"):
            await table.wait_saved()
        (tmp_path / "not a directory").unlink()
        await table.wait_saved()
        table.close()

    asyncio.run(run())
    assert KvStore(tmp_path / "not a directory" / "kv.json").get("NS", "k") == "v"


@pytest.mark.parametrize("content", ["", "\0\0\0\0", "{"])
def test_an_empty_or_corrupt_file_is_never_read_as_an_empty_table(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kv.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"kv\.json.*repair or remove"):
        KvStore(path)
    backup = tmp_path / "kv.json.bak"
    backup.write_text('{"configTable":{"NS":{"k":"v"}}}')
    table = KvStore(path)
    assert table.get("NS", "k") == "v"
    assert "kv.json.bak" in caplog.text

    def crash(source: Path, target: Path) -> Path:
        if target == path:
            raise OSError("killed")
        return rename(source, target)

    async def run() -> None:
        table.put("NS", "k2", "v")
        with mock.patch.object(Path, "replace", crash), pytest.raises(StoreError):
            await table.wait_saved()
        assert KvStore(path).get("NS", "k") == "v", "the good copy outlives a crash of the next write"
        await table.wait_saved()
        table.close()

    rename = Path.replace
    asyncio.run(run())
    assert KvStore(path).get("NS", "k2") == "v"
    assert (tmp_path / "kv.json.damaged").read_text() == content


def test_a_full_table_accepts_only_smaller_values(tmp_path: Path) -> None:
    table = KvStore(tmp_path / "kv.json")
    value = "x" * 250_000
    for number in range(kv_store.TABLE_MAX // 250_100):
        table.put("NS", str(number), value)
    with pytest.raises(ProtocolError, match=f"at most {kv_store.TABLE_MAX}"):
        table.put("NS", "one more", value)
    table.put("NS", "0", "small")
    table.put("NS", "one more", "small")
    table.delete("NS", "1")
    table.put("NS", "one more", value)


def test_names_and_values_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = KvStore(tmp_path / "kv.json")
    for namespace, key in (("n" * 1025, "k"), ("n", "k" * 1025)):
        with pytest.raises(ProtocolError, match="1025 characters"):
            table.put(namespace, key, "v")
    monkeypatch.setattr(kv_store, "VALUES_MAX", 2)
    table.put("n", "1", "v")
    table.put("n", "2", "v")
    table.put("n", "2", "w")
    with pytest.raises(ProtocolError, match="has 2 values, the maximum is 2"):
        table.put("n", "3", "v")


def test_empty_namespaces_do_not_count_towards_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_store, "NAMESPACES_MAX", 3)
    table = KvStore(tmp_path / "kv.json")
    for number in range(10):
        table.put(f"n{number}", "k", "v")
        table.delete(f"n{number}", "k")
    assert table.namespace("n9") == {}
    for number in range(3):
        table.put(f"full{number}", "k", "v")
    with pytest.raises(ProtocolError, match="namespaces"):
        table.put("one more", "k", "v")


def test_a_directory_in_place_of_the_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "kv.json").mkdir()
    with pytest.raises(ConfigError, match=r"cannot read .*kv\.json"):
        KvStore(tmp_path / "kv.json")


def test_invalid_entries_are_not_loaded_and_the_file_is_retained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, content = tmp_path / "kv.json", {"configTable": {"NS": {"k": "v", "a\u0001": "v", "": "v"}}}
    path.write_text(json.dumps(content))
    table = KvStore(path)
    assert table.namespace("NS") == {"k": "v"}
    assert "Dropped 2 invalid entries" in caplog.text
    table.put("NS", "l", "w")
    asyncio.run(table.wait_saved())
    table.close()
    assert json.loads((tmp_path / "kv.json.damaged").read_text()) == content
    assert KvStore(path).namespace("NS") == {"k": "v", "l": "w"}

"""SystemDisk for cases that a fake disk cannot represent: relative paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from ariane.store.disk.files import SystemDisk


@pytest.mark.timeout(10)
def test_directories_of_a_relative_path_are_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    created_in = SystemDisk().make_dirs("store/config")

    assert (tmp_path / "store" / "config").is_dir()
    assert created_in == [str(tmp_path / "store"), str(tmp_path)]
    assert SystemDisk().make_dirs("store/config") == []

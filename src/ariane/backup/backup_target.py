"""Where backups are stored: named objects that are written whole, in a directory or behind a URL of fsspec."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from ariane.errors import ConfigError, StoreError
from ariane.extras import naming_extras
from ariane.private_files import replace_private, sync_directory

_PRIVATE_DIRECTORY = 0o700


class BackupTarget(Protocol):
    """Objects by name. A name has `/` between its parts; an object appears with its whole content."""

    url: str

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of all objects below `prefix`, a part or several."""

    def read(self, name: str) -> bytes:
        """Return an object.

        Raises:
            StoreError: it is missing, or cannot be read.
        """

    def write(self, name: str, data: bytes) -> None: ...
    def remove(self, name: str) -> None: ...


class DirectoryTarget:
    """A directory on this machine. What it contains is on the disk, and readable by its owner only."""

    def __init__(self, directory: Path) -> None:
        self.url = str(directory)
        self._directory = directory

    def names(self, prefix: str) -> Iterator[str]:
        for parent, _, files in os.walk(self._directory / prefix):
            for file in files:
                if not file.endswith(".tmp"):
                    yield str((Path(parent) / file).relative_to(self._directory))

    def read(self, name: str) -> bytes:
        try:
            return (self._directory / name).read_bytes()
        except OSError as error:
            raise StoreError(f"Cannot read {self.url}/{name}: {error.strerror}") from error

    def write(self, name: str, data: bytes) -> None:
        path = self._directory / name
        try:
            _make_directories(path.parent)
            replace_private(path, data)
        except OSError as error:
            raise StoreError(f"Cannot write {path}: {error.strerror}") from error

    def remove(self, name: str) -> None:
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"Cannot remove {self.url}/{name}: {error.strerror}") from error


class UrlTarget:
    """Objects below a URL of fsspec, for example `s3://bucket/broker-a`. A put makes an object appear whole.

    Args:
        options: Arguments of the file system, as fsspec takes them; without them it reads its own environment and files.
    """

    def __init__(self, url: str, **options: Any) -> None:
        with naming_extras():
            from fsspec.core import url_to_fs
        try:
            self._files, root = url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            raise ConfigError("URL", url, f"{error}") from error
        self.url = url.rstrip("/")
        self._root = root.rstrip("/")
        self._files.use_listings_cache = False  # another machine may write there

    def names(self, prefix: str) -> Iterator[str]:
        try:
            self._files.invalidate_cache()
            for path in self._files.find(f"{self._root}/{prefix}"):
                yield path.removeprefix(self._root).lstrip("/")
        except FileNotFoundError:
            return
        except Exception as error:  # each file system has errors of its own
            raise StoreError(f"Cannot list {self.url}/{prefix}: {error}") from error

    def read(self, name: str) -> bytes:
        try:
            return bytes(self._files.cat_file(f"{self._root}/{name}"))
        except Exception as error:
            raise StoreError(f"Cannot read {self.url}/{name}: {error!r}") from error

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        try:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, data)
        except Exception as error:
            raise StoreError(f"Cannot write {self.url}/{name}: {error!r}") from error

    def remove(self, name: str) -> None:
        try:
            self._files.rm_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return
        except Exception as error:
            raise StoreError(f"Cannot remove {self.url}/{name}: {error!r}") from error


def open_target(url: str) -> BackupTarget:
    """Return the target of a path or URL; nothing is created before the first write.

    Raises:
        ConfigError: fsspec does not know this kind of URL.
        MissingPackage: the URL needs fsspec, which the extra `backup` installs.
    """
    return UrlTarget(url) if "://" in url else DirectoryTarget(Path(url).expanduser().absolute())


def _make_directories(path: Path) -> None:
    if path.is_dir():
        return
    _make_directories(path.parent)
    path.mkdir(mode=_PRIVATE_DIRECTORY, exist_ok=True)
    sync_directory(path.parent)

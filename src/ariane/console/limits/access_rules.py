"""The file of limits: access.toml in the data directory. Read again when it changes; one that is damaged keeps the former rules.

[[limit]]                          [[mask]]
accounts = ["support-.*"]          roles = ["viewer"]
topics = ["orders.*"]              topics = ["orders.*", "payments"]
groups = ["billing", "orders-.*"]  properties = ["card.*", "KEYS"]        body = true is the default
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import msgspec

from ariane.console.limits.access import FULL_ACCESS, Access, Mask, matches
from ariane.console.security.roles import ConsoleRole
from ariane.errors import ConfigError

log = logging.getLogger("ariane.console")


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Topics and groups of some accounts or roles. Several that concern an account add up."""

    accounts: tuple[str, ...] = ()
    roles: tuple[ConsoleRole, ...] = ()
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class MaskRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of messages that some accounts or roles may not see."""

    accounts: tuple[str, ...] = ()
    roles: tuple[ConsoleRole, ...] = ()
    topics: tuple[str, ...] = (".*",)
    body: bool = True
    properties: tuple[str, ...] = ()


class AccessFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of access.toml."""

    limit: tuple[Limit, ...] = ()
    mask: tuple[MaskRule, ...] = ()


class AccessRules:
    """The limits of a console's accounts."""

    def __init__(self, data_dir: Path) -> None:
        """Read the file.

        Raises:
            ConfigError: it cannot be read, or has an invalid value.
        """
        self.path = data_dir / "access.toml"
        self._stamp = self._stat()
        self._file = self._read()

    def access_of(self, account: str, role: ConsoleRole) -> Access:
        """Return what an account may see. An admin sees everything: it manages the accounts."""
        self._reload_if_changed()
        if role is ConsoleRole.ADMIN:
            return FULL_ACCESS
        limits = [limit for limit in self._file.limit if _concerns(limit, account, role)]
        masks = tuple(
            Mask(mask.topics, mask.body, mask.properties) for mask in self._file.mask if _concerns(mask, account, role)
        )
        if not limits:
            return Access(masks=masks)
        topics = tuple(pattern for limit in limits for pattern in limit.topics)
        return Access(topics, tuple(pattern for limit in limits for pattern in limit.groups), masks)

    def _reload_if_changed(self) -> None:
        stamp = self._stat()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            if stamp is None:  # limits end by an empty file, not by one that an editor is about to replace
                raise ConfigError(
                    "console", str(self.path), "does not exist any more; to remove all limits, leave it empty"
                )
            self._file = self._read()
        except ConfigError as error:
            log.error("Keeping the former limits of accounts: %s", error)
        else:
            log.info("Limits of accounts were read from %s", self.path)

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self) -> AccessFile:
        try:
            file = msgspec.toml.decode(self.path.read_bytes(), type=AccessFile)
        except FileNotFoundError:
            return AccessFile()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError("console", str(self.path), f"cannot read it: {error}; correct the file") from None
        entries: list[Limit | MaskRule] = [*file.limit, *file.mask]
        for entry in entries:
            _check(self.path, entry)
        return file


def _concerns(entry: Limit | MaskRule, account: str, role: ConsoleRole) -> bool:
    return role in entry.roles or matches(entry.accounts, account)


def _check(path: Path, entry: Limit | MaskRule) -> None:
    if not entry.accounts and not entry.roles:
        raise ConfigError("console", str(path), "an entry has neither accounts nor roles; add one of them")
    if ConsoleRole.ADMIN in entry.roles:
        raise ConfigError(
            "console", str(path), "an admin has no limits: it manages the accounts; remove the role admin"
        )
    names = (*entry.accounts, *entry.topics, *(entry.groups if isinstance(entry, Limit) else entry.properties))
    for pattern in names:
        try:
            re.compile(f"(?:{pattern})")  # as `matches` uses it: without global flags
        except re.error as error:
            raise ConfigError("console", str(path), f"{pattern!r} is not a regular expression: {error}") from None

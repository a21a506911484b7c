"""All settings of a server: its configuration file is read, checked and changed by one `SettingsSchema`.

broker.conf ── properties ── options of the command line ──► parse ──► struct, remarks about unknown and unused keys
                                                              │
                      refused keys, invalid values            └──► ConfigError names the key and what is expected

request of a tool ──► change ──► struct, texts of the changed keys
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, Self, TypeVar

import msgspec

from ariane.errors import ConfigError, ProtocolError
from ariane.protocol import java_properties
from ariane.settings.definitions import Setting, settings_of, to_text
from ariane.settings.tls_properties import with_tls_file
from ariane.settings.unknown_keys import Unsupported, check_unknown_keys, describe_unknown_key

_SECRET_NAME = re.compile("password|passwd|secret|token", re.IGNORECASE)


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Base of a server's configuration. A subclass adds the rules that concern several settings."""

    def __repr__(self) -> str:
        texts = (
            f"{setting.key}={to_text(getattr(self, setting.name))}"
            for setting in settings_of(type(self))
            if not setting.is_secret
        )
        return f"{type(self).__name__}({', '.join(texts)})"

    def validate(self) -> Self:
        """Return the configuration that the server runs with.

        Raises:
            ConfigError: a value violates the constraint of its field. The message names the first one.
        """
        for setting in settings_of(type(self)):
            setting.check(getattr(self, setting.name))
        return self


C = TypeVar("C", bound=ServerConfig)


class SettingsSchema(Generic[C]):
    """The settings of one kind of server, and the keys of RocketMQ that it does not have.

    Args:
        kind: The struct that holds the settings.
        server: The server in messages, for example `broker`.
        file_name: Its configuration file in messages, for example `broker.conf`.
        list_command: The command of mqadmin that lists all keys; empty: none, and none changes them.
        without_effect: Reasons by key. Settings of a base struct may be among them.
        unsupported: Keys that are refused.
    """

    def __init__(
        self,
        kind: type[C],
        *,
        server: str,
        file_name: str,
        list_command: str,
        without_effect: Mapping[str, str],
        unsupported: Mapping[str, Unsupported],
    ) -> None:
        self.kind = kind
        self.server = server
        self.file_name = file_name
        self.settings: dict[str, Setting] = {
            setting.key: setting for setting in settings_of(kind) if setting.key not in without_effect
        }
        """The settings by key, in the order of their groups."""
        self.without_effect = without_effect
        self.unsupported = unsupported
        self.changeable = frozenset(
            key for key, setting in self.settings.items() if list_command and setting.changeable is not None
        )
        self._list_command = list_command

    def load(
        self, path: Path | None, options: Mapping[str, str] | None = None, defaults: Mapping[str, str] | None = None
    ) -> tuple[C, list[str]]:
        """Return the settings of a file, and a line for each group of keys that have no effect.

        Args:
            path: The file; None: only options, and what `tls.config.file` names.
            options: Keys and texts of the command line, which replace those of the file.
            defaults: Keys and texts that those of the file replace.

        Raises:
            ConfigError: a file cannot be read, a value is invalid, or a key is unsupported.
        """
        properties = {} if path is None else self._read(path)
        return self.parse(with_tls_file({**(defaults or {}), **properties, **(options or {})}))

    @staticmethod
    def _read(path: Path) -> dict[str, str]:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8: {error}"
            raise ConfigError("-c", str(path), f"cannot read the file: {reason}") from error
        try:
            return java_properties.parse(text)
        except ProtocolError as error:
            raise ConfigError("-c", str(path), str(error)) from error

    def parse(self, properties: Mapping[str, str]) -> tuple[C, list[str]]:
        """Return the settings of texts by key, and a line for each group of keys that have no effect.

        Raises:
            ConfigError: a value is invalid, or a key is unsupported.
        """
        # Only keys that are present: the defaults are those of the struct.
        values = {
            setting.name: setting.read(properties[key]) for key, setting in self.settings.items() if key in properties
        }
        config = self.kind(**values)
        unknown = {key: text for key, text in properties.items() if key not in self.settings}
        without_effect, unsupported = dict(self.without_effect), dict(self.unsupported)
        for key, entry in self.unsupported.items():
            # The other setting makes this key irrelevant: it is reported, not refused.
            if entry.unless_set and getattr(config, self.settings[entry.unless_set].name):
                del unsupported[key]
                without_effect[key] = entry.unless_reason
        remarks = check_unknown_keys(unknown, self.settings, without_effect, unsupported)
        return config.validate(), remarks

    def texts(self, config: C) -> dict[str, str]:
        """Return key and text of every setting that may be shown, as a configuration file holds them."""
        return self._texts(config, are_secret=False)

    def _texts(self, config: C, *, are_secret: bool) -> dict[str, str]:
        return {
            key: to_text(getattr(config, setting.name))
            for key, setting in self.settings.items()
            if setting.is_secret == are_secret
        }

    def change(self, config: C, changes: Mapping[str, str]) -> tuple[C, dict[str, str]]:
        """Return the configuration after the changes of a request, and the texts of the keys that differ.

        A key with the value that it already has counts as absent, so that tools can send back all keys they were given.
        Either all changes are applied or none.

        Raises:
            ConfigError: a key cannot be changed, or does not exist; names the first one and what to do.
        """
        current = self.texts(config)
        different = {key: text.strip() for key, text in changes.items() if current.get(key) != text.strip()}
        for key, text in different.items():
            self._check_change(key, text)
        # Parsed as a whole, so that a change passes the same checks as a file, those of several settings included.
        changed, _ = self.parse({**current, **self._texts(config, are_secret=True), **different})
        changed_texts = self.texts(changed)
        return changed, {key: changed_texts[key] for key in different}

    def _check_change(self, key: str, text: str) -> None:
        if key in self.changeable:
            self.settings[key].check_change(text)
            return
        # Also of a misspelt key, whose value may be a password.
        is_secret = self.settings[key].is_secret if key in self.settings else bool(_SECRET_NAME.search(key))
        shown = None if is_secret else text
        if key in self.settings:
            raise ConfigError(
                key, shown, f"cannot be changed while the {self.server} runs; edit {self.file_name} and restart it"
            )
        if key in self.without_effect:
            raise ConfigError(key, shown, f"has no effect here ({self.without_effect[key]}); remove the key")
        if key in self.unsupported:
            raise ConfigError(key, shown, self.unsupported[key].fix)
        # Keys without effect are candidates, too: a misspelt one then gets its own explanation.
        line = describe_unknown_key(key, [*self.settings, *self.without_effect, *self.unsupported])
        raise ConfigError(key, shown, f"{line} `mqadmin {self._list_command}` lists all keys.")

"""The file of TLS settings that all servers of a machine share: tls.properties. [TlsHelper.extractTlsConfigFromFile]

    tls.properties  ─ replaces ─→  -D NAME=VALUE  ─ replaces ─→  broker.conf, namesrv.conf

As in Java, the mode and `tls.enable` are not read from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ariane.errors import ConfigError, ProtocolError
from ariane.protocol import java_properties

CONFIG_FILE_KEY = "tls.config.file"
CONFIG_FILE = "/etc/rocketmq/tls.properties"
NOT_IN_FILE = ("tls.server.mode", "tls.enable", CONFIG_FILE_KEY)


def with_tls_file(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties, overridden by the file that `tls.config.file` names if it exists.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = Path(properties.get(CONFIG_FILE_KEY, CONFIG_FILE))
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):  # Java skips it
        return dict(properties)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8: {error}"
        raise ConfigError(CONFIG_FILE_KEY, str(path), f"cannot read the file: {reason}") from error
    try:
        replaced = java_properties.parse(text)
    except ProtocolError as error:
        raise ConfigError(CONFIG_FILE_KEY, str(path), str(error)) from error
    return {**properties, **{key: value for key, value in replaced.items() if key not in NOT_IN_FILE}}

"""TLS of servers without a configuration file, console and exporter: the keys `tls.` of other servers, as options -D."""

from __future__ import annotations

from collections.abc import Mapping

from ariane.errors import UsageError
from ariane.net.listening.server_tls import ServerTlsOptions
from ariane.settings.schema import SettingsSchema
from ariane.settings.tls import ServerTlsSettings
from ariane.settings.tls_properties import CONFIG_FILE_KEY, with_tls_file

PREFIX, MODE_KEY, TEST_KEY = "tls.", "tls.server.mode", "tls.test.mode.enable"
_SCHEMA = SettingsSchema(
    ServerTlsSettings,
    server="server",
    file_name="tls.properties",
    list_command="getBrokerConfig",
    without_effect={},
    unsupported={},
)


def http_tls(definitions: Mapping[str, str]) -> ServerTlsOptions | None:
    """Return the TLS that options -D declare; None: all connections are plain.

    With a certificate the mode is `enforcing` unless it is set: a password must not cross the network in plain text because a
    reader forgot the s of https. /etc/rocketmq/tls.properties is not read unless `tls.config.file` names it: it would change the
    scheme of a console that was installed before it.

    Raises:
        UsageError: a key does not concern the TLS of a server.
        ConfigError: a value is invalid, or the file cannot be read.
    """
    if unknown := [key for key in definitions if not key.startswith(PREFIX) or key not in _SCHEMA.settings]:
        keys = ", ".join(key for key in _SCHEMA.settings if key.startswith(PREFIX))
        raise UsageError("-D", unknown[0], f"expected one of {keys}")
    properties = dict(definitions)
    if CONFIG_FILE_KEY in properties:
        properties = {key: text for key, text in with_tls_file(properties).items() if key in _SCHEMA.settings}
    settings, _ = _SCHEMA.parse(properties)
    has_certificate = bool(settings.tls_server_cert_path or settings.tls_server_key_path)
    if MODE_KEY not in properties:
        if not has_certificate and properties.get(TEST_KEY) != "true":
            return None
        settings, _ = _SCHEMA.parse({**properties, MODE_KEY: "enforcing"})
    return None if settings.tls_server_mode == "disabled" else settings.server_tls()

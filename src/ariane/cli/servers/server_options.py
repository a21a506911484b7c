"""Options of the servers that have a configuration file: `ariane broker`, `ariane namesrv` and `ariane proxy`.

command line ─→ ServerOptions ─ load ─→ configuration ─→ server ─ serve ─→ runs until it is stopped
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import flag_option, path_option, port_option
from ariane.cli.servers.process import run_server
from ariane.settings.connections import ALL_ADDRESSES
from ariane.settings.schema import C, SettingsSchema


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The values of the options."""

    config_file: Annotated[
        Path | None,
        path_option("-c", "--configFile", metavar="FILE", help="Configuration file in RocketMQ's format (*.conf)."),
    ] = None
    port: Annotated[
        int | None, port_option("--port", help="Listen port; 0 selects a free one; overrides that of the file.")
    ] = None
    definitions: shared_options.DefinedKeys = None
    insecure: shared_options.Insecure = False
    compatible: shared_options.Compatible = False
    print_config: Annotated[
        bool, flag_option("--printConfigItem", "Print the effective settings, then exit.", short="-p")
    ] = False
    log_file: shared_options.LogFile = None
    until_stdin_closes: shared_options.UntilStdinCloses = False

    def load(self, schema: SettingsSchema[C], namesrv: str | None = None, *, port_key: str = "listenPort") -> C:
        """Return the configuration of the file and of the options, and report keys without effect on stderr.

        `--port` sets `port_key`. With `--compatible`, the server listens where Java's does if the file has no address.

        Raises:
            ConfigError: a value is invalid, or a key is unsupported.
            typer.Exit: with `--printConfigItem`, after printing the settings in the form of a configuration file. [-p]
        """
        options = {
            "insecure": "true" if self.insecure or self.compatible else None,
            **shared_options.defined_keys(self.definitions),
            "namesrvAddr": namesrv,
            port_key: None if self.port is None else str(self.port),
        }
        # As keys of the file, so that values of both sources are checked alike.
        texts = {key: text for key, text in options.items() if text is not None}
        defaults = {"bindAddress": ALL_ADDRESSES} if self.compatible else {}
        config, remarks = schema.load(self.config_file, texts, defaults)
        for remark in remarks:
            typer.echo(f"{self.config_file or 'options'}: {remark}", err=True)
        if self.print_config:
            for key, text in schema.texts(config).items():
                typer.echo(f"{key}={text}")
            raise typer.Exit
        return config

    def serve(self, create_server: Callable[[], AbstractAsyncContextManager[run_server.RunningServer]]) -> None:
        """Run the server until it is stopped."""
        run_server.serve(create_server, log_file=self.log_file, until_stdin_closes=self.until_stdin_closes)

"""Options of commands that can serve their metrics: port and address, TLS, and the consent to an open port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from ariane.cli.options.option_kinds import flag_option, port_option, text_option
from ariane.cli.options.shared_options import LOOPBACK

PANEL = "Metrics options"


@dataclass(frozen=True, kw_only=True)
class MetricsOptions:
    """The values of the options."""

    metrics_port: Annotated[int, port_option(panel=PANEL, help="Port of /metrics for Prometheus; 0: no metrics.")] = 0
    bind: Annotated[
        str, text_option(panel=PANEL, metavar="ADDRESS", help="Address of that port; clients need no account.")
    ] = LOOPBACK
    definitions: Annotated[
        list[str] | None,
        typer.Option(
            "-D",
            metavar="KEY=VALUE",
            help="TLS of that port, for example -Dtls.server.certPath=FILE; repeatable.",
            rich_help_panel=PANEL,
        ),
    ] = None
    insecure: Annotated[
        bool, flag_option("--insecure", "Start although other machines reach that port without TLS.", panel=PANEL)
    ] = False

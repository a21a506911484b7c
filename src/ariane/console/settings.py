"""Settings of the console: which cluster it shows, where it listens and where it stores its own state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ariane.access.public_ports import Gap
from ariane.model.topic import TRACE_TOPIC
from ariane.net.listening.server_tls import ServerTlsOptions
from ariane.tables.table_home import Home

if TYPE_CHECKING:
    from ariane.client.instance.settings import ClientSettings

DEFAULT_PORT = 8080


class ConsoleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one console.

    Attributes:
        namesrv: Name server addresses, separated by ';'.
        data_dir: Directory of accounts, sessions, alert rules and the audit log; created if it does not exist.
        host: Address to listen on.
        port: HTTP port; 0 selects a free one.
        client: Account that signs every request, for brokers with access control, and TLS; None: neither.
        tls: Certificate of the HTTP port; None: it is plain.
        gaps: What the HTTP port lacks if other machines reach it.
        tables_dir: Directory of the pipeline's tables; None without a pipeline.
        trace_topic: Topic of message traces that pages show by default.
        is_read_only: Reject every change of the cluster.
        is_login_required: Demand a log-in on loopback, too. Other addresses always demand one.
    """

    namesrv: str
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    client: ClientSettings | None = None
    tls: ServerTlsOptions | None = None
    gaps: tuple[Gap, ...] = ()
    tables_dir: Home | None = None
    trace_topic: str = TRACE_TOPIC
    is_read_only: bool = False
    is_login_required: bool = False

"""The server programs of `ariane up`: their arguments, and the configuration files that it writes once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ariane.cli.options import paths as homes
from ariane.cli.up import local_etcd
from ariane.cli.up.child_processes import ChildProcess
from ariane.cli.up.planned_brokers import PlannedBroker, failover_keys
from ariane.net.listening.fixed_ports import LOOPBACK
from ariane.net.listening.local_authority import LocalFiles


def name_server(home: Path, port: int, tls: LocalFiles | None) -> ChildProcess:
    # Everything below the home, and on the loopback address only: a home can be removed as a whole, and other machines
    # do not reach the servers.
    settings = {
        "bindAddress": LOOPBACK,
        "kvConfigPath": str(home / "store" / "namesrv" / "kvConfig.json"),
    }
    conf = _write_default_config(home / "conf" / "namesrv.conf", settings)
    arguments = ("namesrv", "-c", str(conf), "--port", str(port), *_server_tls(tls))
    return ChildProcess("namesrv", (*arguments, *_supervised(home, "namesrv")))


def broker(
    home: Path, planned: PlannedBroker, namesrv: str, ports: Mapping[str, int], etcd: str, tls: LocalFiles | None
) -> ChildProcess:
    """Return a broker.

    Args:
        ports: Ports of all brokers, by the name of their process.
        etcd: Address of etcd, for members of a broker set.
        tls: Certificates; None: connections are plain.
    """
    settings = {
        "brokerClusterName": "DefaultCluster",
        **planned.settings,
        "bindAddress": LOOPBACK,
        "brokerIP1": LOOPBACK,
        "storePathRootDir": str(home / planned.store),
    }
    conf = _write_default_config(home / "conf" / f"{planned.process}.conf", settings)
    arguments = ("broker", "-c", str(conf), "-n", namesrv, "--port", str(ports[planned.process]), *_server_tls(tls))
    if tls is not None:
        arguments += ("-Dtls.client.authServer=true", f"-Dtls.client.trustCertPath={tls.ca}", "-DhaTls=true")
    if planned.member:
        arguments += tuple(f"-D{key}={value}" for key, value in failover_keys(planned, ports, etcd).items())
        arguments += _new_set(home, planned)
    arguments += _supervised(home, planned.process)
    return ChildProcess(planned.process, arguments, optional=planned.is_optional)


def _new_set(home: Path, planned: PlannedBroker) -> tuple[str, ...]:
    """Let the first member create the record of its set, unless a member has messages: the record decides which ones count."""
    log = home / planned.store / "commitlog"
    is_first = planned.settings["brokerId"] == "1"
    return () if not is_first or (log.is_dir() and any(log.iterdir())) else ("--new-broker-set",)


def etcd(home: Path, client_port: int, peer_port: int) -> ChildProcess:
    arguments = (str(home / "etcd"), str(client_port), str(peer_port))
    return ChildProcess("etcd", arguments, module=local_etcd.__name__)


def console(home: Path, namesrv: str, port: int, tls: LocalFiles | None) -> ChildProcess:
    arguments = ("console", "-n", namesrv, "--port", str(port), "--home", str(homes.tables_dir(home)))
    data = ("--data", str(homes.console_dir(home)))
    return ChildProcess("console", (*arguments, *data, *client_tls(tls), *_supervised(home, "console")), optional=True)


def client_tls(tls: LocalFiles | None) -> tuple[str, ...]:
    """Return the arguments of a command that connects to the servers, whatever the variables ARIANE_TLS… say."""
    return () if tls is None else ("--tls", "--tls-verify", "true", "--tls-ca-file", str(tls.ca))


def _server_tls(tls: LocalFiles | None) -> tuple[str, ...]:
    """Return the arguments of a server that accepts encrypted connections only, whatever the files of the machine say."""
    if tls is None:
        return ()
    keys = {
        "tls.config.file": os.devnull,
        "tls.server.mode": "enforcing",
        "tls.server.certPath": tls.cert,
        "tls.server.keyPath": tls.key,
    }
    return tuple(f"-D{key}={value}" for key, value in keys.items())


def _supervised(home: Path, name: str) -> tuple[str, ...]:
    return ("--log", str(home / "logs" / f"{name}.log"), "--until-stdin-closes")


def _write_default_config(path: Path, settings: dict[str, str]) -> Path:
    # An existing file belongs to the user.
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
    return path

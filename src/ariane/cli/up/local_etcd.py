"""A single etcd on this machine for `ariane up --failover`: started, watched, and stopped when the parent process ends.

python -m ariane.cli.up.local_etcd DIRECTORY CLIENT-PORT PEER-PORT

standard output   `ready 127.0.0.1:PORT` when etcd answers, as servers of Ariane print it
standard error    the log of etcd
stop              SIGTERM, or the end of standard input: the parent process has ended
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import Process

from ariane.cli.servers.process.run_server import READY
from ariane.errors import UsageError
from ariane.net.listening.fixed_ports import LOOPBACK

PROGRAM = "etcd"
POLL_S = 0.05
HEALTH_S = 1.0  # for the answer to one health request


def require_etcd() -> None:
    """Check that etcd is installed.

    Raises:
        UsageError: it is not on the PATH.
    """
    if shutil.which(PROGRAM) is None:
        raise UsageError(
            "--failover",
            None,
            "requires the program etcd on the PATH: apt-get install etcd-server, brew install etcd, "
            "or https://github.com/etcd-io/etcd/releases",
        )


def etcd_arguments(directory: str, client_port: int, peer_port: int) -> list[str]:
    """Return the command line of an etcd with one member."""
    client, peer = f"http://{LOOPBACK}:{client_port}", f"http://{LOOPBACK}:{peer_port}"
    flags = {
        "data-dir": directory,
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
    }
    return [PROGRAM, *(f"--{name}={value}" for name, value in flags.items())]


async def run(directory: str, client_port: int, peer_port: int) -> int:
    """Run etcd until a stop is requested; return its exit status."""
    # Variables of the environment, such as ETCD_NAME, would change what the flags mean.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
    command = etcd_arguments(directory, client_port, peer_port)
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, env=environment)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, _terminate, process)
    loop.add_reader(sys.stdin.fileno(), _at_stdin, process)
    while process.returncode is None and not await _is_healthy(client_port):  # noqa: ASYNC110 - the condition is another process
        await asyncio.sleep(POLL_S)
    if process.returncode is None:
        print(READY, f"{LOOPBACK}:{client_port}", flush=True)
    return await process.wait()


def _at_stdin(process: Process) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        _terminate(process)


def _terminate(process: Process) -> None:
    if process.returncode is None:
        process.terminate()


async def _is_healthy(port: int) -> bool:
    try:
        async with asyncio.timeout(HEALTH_S):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(b"GET /health HTTP/1.0\r\n\r\n")
                return b'"health":"true"' in await reader.read()
            finally:
                writer.close()
    except OSError:  # includes TimeoutError
        return False


if __name__ == "__main__":
    sys.exit(asyncio.run(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))

"""Program: performs attacks, each bounded in connections and time.

    python tests/attacker.py < names          performs each attack that is named on a line, and prints its name when it is over

The first line of the input is a JSON object of the ports. `ARIANE_ATTACK_S` is the duration of each in seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import ssl
import sys
from collections.abc import Iterator

import ci_form
from attacks import ATTACKS, Attack

# Pings are timed in the long form, unless tests of other processes share the machine.
IS_TIMED = ci_form.IS_LONG and "PYTEST_XDIST_WORKER" not in os.environ
ATTACK_S = float(os.environ.get("ARIANE_ATTACK_S") or (3 if IS_TIMED else 0.15))
NICENESS = 10  # servers and pings come first on a machine with few cores
READ_MAX = 1 << 16


async def perform(attack: Attack, port: int) -> None:
    """Perform an attack until its time is over."""
    end = asyncio.get_running_loop().time() + ATTACK_S
    await asyncio.gather(*(connect_until(end, attack, port, number) for number in range(attack.connections)))


async def connect_until(end: float, attack: Attack, port: int, number: int) -> None:
    numbers = itertools.count(number, attack.connections)
    is_first = True
    while is_first or ((attack.reconnects or attack.repeats) and asyncio.get_running_loop().time() < end):
        is_first = False
        with contextlib.suppress(OSError, TimeoutError, ssl.SSLError):
            async with asyncio.timeout_at(end):
                await one_connection(attack, port, numbers)


async def one_connection(attack: Attack, port: int, numbers: Iterator[int]) -> None:
    """Connect, send, and read until the server ends the connection."""
    if attack.renegotiates:
        await renegotiate(port)
        return
    context = trusting() if attack.tls else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=READ_MAX)
    reading = asyncio.create_task(read_all(reader) if attack.reads else asyncio.Event().wait())
    try:
        for number in numbers:
            data = attack.data(number)
            for piece in (bytes([byte]) for byte in data) if attack.drips else (data,):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.02 if attack.drips else 0)
            if not attack.repeats:
                break
        if not attack.resets:
            await reading
    finally:
        reading.cancel()
        writer.transport.abort()


async def read_all(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(READ_MAX):
            pass


async def renegotiate(port: int) -> None:
    """Request handshakes on a connection of TLS 1.2 until the server ends it; Python's TLS cannot do that."""
    arguments = ["s_client", "-tls1_2", "-connect", f"127.0.0.1:{port}"]
    quiet = asyncio.subprocess.DEVNULL
    client = await asyncio.create_subprocess_exec(
        "openssl", *arguments, stdin=asyncio.subprocess.PIPE, stdout=quiet, stderr=quiet
    )
    assert client.stdin is not None
    try:
        while client.returncode is None:
            client.stdin.write(b"R\n")
            await asyncio.sleep(0.01)
    finally:
        if client.returncode is None:
            client.kill()
        await client.wait()


def trusting() -> ssl.SSLContext:
    """Return a context that verifies nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def main() -> None:
    os.nice(NICENESS)
    ports = json.loads(sys.stdin.readline())
    print("ready", flush=True)
    for line in sys.stdin:
        attack = ATTACKS[line.strip()]
        asyncio.run(perform(attack, ports[attack.port]))
        print(line.strip(), flush=True)


if __name__ == "__main__":
    main()

"""A switch between hosts that loses, delays, duplicates and reorders packets: `python tests/packet_switch.py PREFIX COUNT`.

Creates the interfaces PREFIX0, PREFIX1, … in its network namespace, whose hardware addresses end with their number, and forwards
frames between them; others move the interfaces to other namespaces. Each line of its input replaces all rules: a JSON list of
[from, to, drop, delay_ms, duplicate] with probabilities. A frame is delayed by up to `delay_ms` at random, which also reorders. It
needs /dev/net/tun and no netem, and ends with its input.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import struct
import subprocess
import sys
from functools import partial

TUNSETIFF = 0x400454CA
TAP_WITHOUT_HEADER = 0x1002
FRAMES_PER_TURN = 64
Rule = tuple[float, float, float]  # drop, delay in ms, duplicate


def open_tap(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", name.encode(), TAP_WITHOUT_HEADER))
    return tap


class PacketSwitch:
    """Forwards frames by the rules of their hosts."""

    def __init__(self, taps: list[int]) -> None:
        self._taps = taps
        self._rules: dict[tuple[int, int], Rule] = {}

    def replace_rules(self, line: str) -> None:
        self._rules = {(source, target): (*rule,) for source, target, *rule in json.loads(line)}

    def forward(self, source: int) -> None:
        """Forward the frames that a host sent."""
        for _ in range(FRAMES_PER_TURN):
            try:
                frame = os.read(self._taps[source], 65_536)
            except OSError:  # nothing left, or the interface is down
                return
            is_for_all = frame[0] & 1
            for target in range(len(self._taps)) if is_for_all else (frame[5],):
                if target != source and target < len(self._taps):
                    self._send(source, target, frame)

    def _send(self, source: int, target: int, frame: bytes) -> None:
        rule = self._rules.get((source, target))
        if rule is None:
            self._write(target, frame)
            return
        drop, delay_ms, duplicate = rule
        for _ in range(2 if random.random() < duplicate else 1):
            if random.random() >= drop:
                wait_s = random.uniform(0, delay_ms) / 1000
                asyncio.get_running_loop().call_later(wait_s, self._write, target, frame)

    def _write(self, target: int, frame: bytes) -> None:
        try:
            os.write(self._taps[target], frame)
        except OSError:
            return  # its queue is full or it is down: the frame is lost, as in any network


async def serve(prefix: str, count: int) -> None:
    taps = [open_tap(f"{prefix}{number}") for number in range(count)]
    for number in range(count):
        command = f"ip link set {prefix}{number} address 02:00:00:00:00:{number:02x} mtu 9000"
        subprocess.run(command.split(), check=True)
    switch, loop = PacketSwitch(taps), asyncio.get_running_loop()
    for number, tap in enumerate(taps):
        loop.add_reader(tap, partial(switch.forward, number))
    print("ready", flush=True)
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        switch.replace_rules(line.decode())


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))

"""A broker set on hosts of its own: network namespaces, a switch in user space, disks of their own, and an etcd of three members.

    inside_namespaces()
    async with hosted_set(home, {"flushDiskType": "SYNC_FLUSH"}) as hosts: ...

Hosts: brokers a b c, etcd members e0 e1 e2, name servers n0 n1, and the clients, which run where this program runs. Each broker has
a file system on a loop device, whose file is on a small tmpfs: the file system can be full, the tmpfs can be full below it, so that
writes fail (EIO), and it can be frozen. The wall clock of a broker comes from libfaketime, where it is installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

from ariane.net.pools.connection_pool import ConnectionPool
from etcd_cluster import PROGRAM, REASON
from failover_processes import BROKER_NAME, BrokerProcess, BrokerSet

BROKERS, ETCD, NAME_SERVERS = ("a", "b", "c"), ("e0", "e1", "e2"), ("n0", "n1")
HOSTS = (*BROKERS, *ETCD, *NAME_SERVERS, "clients")
FAKE_TIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
BROKER_PORT, NAME_SERVER_PORT, ETCD_PORT = 10911, 9876, 2379
Rule = tuple[float, float, float]  # drop, delay in ms, duplicate
CUT: Rule = (1, 0, 0)


def unavailable() -> str:
    """Return why hosts cannot be had on this machine; "" if they can."""
    if PROGRAM is None:
        return REASON
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        return "needs root and /dev/net/tun"
    if missing := [program for program in ("unshare", "nsenter", "ip", "mkfs.ext4") if shutil.which(program) is None]:
        return f"needs {', '.join(missing)} (util-linux, iproute2, e2fsprogs)"
    attempt = (
        "d=$(mktemp -d) && truncate -s 8M $d/image && mkfs.ext4 -q -F $d/image && mkdir $d/disk && mount -o loop $d/image $d/disk;"
        " failed=$?; umount $d/disk; rm -r $d; exit $failed"
    )
    command = ["unshare", *NAMESPACES, "sh", "-c", f"ip link set lo up && {attempt}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return f"no namespaces or loop devices: {done.stderr.strip()[-300:]}" if done.returncode else ""


def sh(command: str, *, check: bool = True) -> int:
    return subprocess.run(
        command, shell=True, check=check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ).returncode


def ip(host: str) -> str:
    return f"10.77.0.{HOSTS.index(host) + 1}"


class HostNetwork:
    """The hosts' namespaces, and the switch between them."""

    def __init__(self) -> None:
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._rules: dict[tuple[str, str], Rule] = {}
        command = [sys.executable, str(Path(__file__).with_name("packet_switch.py")), "tap", str(len(HOSTS))]
        self._switch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._switch.stdout is not None
        self._switch.stdout.readline()
        for number, host in enumerate(HOSTS):
            if host != "clients":
                holder = self._holders[host] = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
                while Path(f"/proc/{holder.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
                    time.sleep(0.01)
                sh(f"ip link set tap{number} netns {holder.pid}")
            within = " ".join(self.within(host))
            for step in (f"addr add {ip(host)}/24 dev tap{number}", f"link set tap{number} up", "link set lo up"):
                sh(f"{within} ip {step}")

    def within(self, host: str) -> list[str]:
        """Return the beginning of a command that runs at a host."""
        return ["nsenter", "-t", str(self._holders[host].pid), "-n"] if host in self._holders else []

    def rule(self, pairs: Iterable[tuple[str, str]], rule: Rule) -> Callable[[], None]:
        """Set the rule of these directions, and return how it ends."""
        added = [pair for pair in pairs if pair[0] != pair[1]]
        self._rules |= dict.fromkeys(added, rule)
        self._write()

        def end() -> None:
            for pair in added:
                self._rules.pop(pair, None)
            self._write()

        return end

    def _write(self) -> None:
        assert self._switch.stdin is not None
        lines = [(HOSTS.index(source), HOSTS.index(target), *rule) for (source, target), rule in self._rules.items()]
        self._switch.stdin.write(json.dumps(lines).encode() + b"\n")
        self._switch.stdin.flush()

    def close(self) -> None:
        for process in (self._switch, *self._holders.values()):
            process.kill()
            process.wait()


class HostProcess(BrokerProcess):
    """A process at a host: of a broker, or any other by its command."""

    def __init__(self, network: HostNetwork, home: Path, host: str, command: list[str]) -> None:
        self.name, self.home = host, home
        self.log = home / f"{host}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._command = [*network.within(host), *command]
        self._environment = os.environ.copy()

    def start(self, *options: str) -> None:
        if self.process is None:
            with self.log.open("ab") as output:
                self.process = subprocess.Popen(
                    [*self._command, *options], stdout=output, stderr=output, env=self._environment
                )

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)


class HostedBroker(HostProcess):
    """A broker with a disk and a wall clock of its own."""

    def __init__(self, network: HostNetwork, home: Path, host: str, settings: dict[str, object]) -> None:
        config = home / f"{host}.conf"
        self.disk, self.below = home / f"disk-{host}", home / f"below-{host}"
        self.store = self.disk / "store"
        values = {**settings, "storePathRootDir": self.store, "bindAddress": ip(host), "memberName": host}
        config.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        super().__init__(
            network, home, host, [sys.executable, "-m", "ariane.cli", "broker", "--insecure", "-c", str(config)]
        )
        self.addr = f"{ip(host)}:{BROKER_PORT}"
        self._clock = home / f"clock-{host}"
        if FAKE_TIME.exists():
            self._environment |= {
                "LD_PRELOAD": str(FAKE_TIME),
                "FAKETIME_TIMESTAMP_FILE": str(self._clock),
                "FAKETIME_CACHE_DURATION": "1",
                "DONT_FAKE_MONOTONIC": "1",
            }
        self.step_clock(0)
        self.disk.mkdir()
        self.below.mkdir()
        sh(f"mount -t tmpfs -o size=640m none {self.below}")
        sh(f"truncate -s 600M {self.below}/image && mkfs.ext4 -q -F -m 0 {self.below}/image")
        self.mount()

    def mount(self) -> None:
        while sh(f"mount -o loop {self.below}/image {self.disk}", check=False):
            time.sleep(0.2)  # another set took the loop device

    def repair(self) -> None:
        """Mount the disk again after writes failed."""
        (self.below / "ballast").unlink(missing_ok=True)
        while sh(f"umount {self.disk}", check=False):
            time.sleep(0.1)
        sh(f"fsck.ext4 -fy {self.below}/image", check=False)
        self.mount()

    def step_clock(self, seconds: int) -> None:
        self._clock.write_text(f"{seconds:+d}s\n")


class HostedSet(BrokerSet):
    """Three brokers, their name servers and etcd, each at its host."""

    def __init__(self, home: Path, network: HostNetwork, peers: ConnectionPool, settings: dict[str, object]) -> None:
        self.peers, self.network = peers, network
        self.namesrv = ";".join(f"{ip(host)}:{NAME_SERVER_PORT}" for host in NAME_SERVERS)
        common: dict[str, object] = {
            "brokerName": BROKER_NAME,
            "brokerRole": "SYNC_MASTER",
            "listenPort": BROKER_PORT,
            "namesrvAddr": self.namesrv,
            "mappedFileSizeCommitLog": 4 << 20,
            "maxHashSlotNum": 1000,
            "maxIndexNum": 4000,
            "failoverMembers": ";".join(f"{name}={ip(name)}:{BROKER_PORT}" for name in BROKERS),
            "failoverEndpoints": ";".join(f"http://{ip(host)}:{ETCD_PORT}" for host in ETCD),
            "minInSyncReplicas": 2,
            "slaveTimeout": 2000,
            "haSendHeartbeatInterval": 200,
            **settings,
        }
        self.members = {
            name: HostedBroker(network, home, name, {**common, "brokerId": number})
            for number, name in enumerate(BROKERS, 1)
        }
        cluster = ",".join(f"{host}=http://{ip(host)}:2380" for host in ETCD)
        self.others = {host: HostProcess(network, home, host, _etcd(home, host, cluster)) for host in ETCD}
        for host in NAME_SERVERS:
            options = (f"bindAddress={ip(host)}", f"listenPort={NAME_SERVER_PORT}", f"kvConfigPath={home}/{host}.json")
            flags = [flag for option in options for flag in ("-D", option)]
            command = [sys.executable, "-m", "ariane.cli", "namesrv", "--insecure", *flags]
            self.others[host] = HostProcess(network, home, host, command)

    async def start(self) -> None:
        for process in self.others.values():
            process.start()
        for index, member in enumerate(self.members.values()):
            member.start(*(["--new-broker-set"] if index == 0 else []))
        await self.complete(len(self.members), limit_s=300)

    def stop(self) -> None:
        for member in self.members.values():
            sh(f"fsfreeze -u {member.disk}", check=False)
        for process in (*self.members.values(), *self.others.values()):
            process.signal(signal.SIGCONT)
            process.kill()


def _etcd(home: Path, host: str, cluster: str) -> list[str]:
    assert PROGRAM is not None
    client, peer = f"http://{ip(host)}:{ETCD_PORT}", f"http://{ip(host)}:2380"
    flags = {
        "name": host,
        "data-dir": home / f"data-{host}",
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "initial-cluster": cluster,
    }
    return [PROGRAM, *(f"--{name}={value}" for name, value in flags.items())]


@contextlib.asynccontextmanager
async def hosted_set(home: Path, settings: dict[str, object]) -> AsyncIterator[HostedSet]:
    """Yield a started set. `home` becomes a tmpfs, which ends with the namespace."""
    sh("mount --make-rprivate /")
    sh(f"mount -t tmpfs none {home}")
    network = HostNetwork()
    try:
        async with ConnectionPool() as peers:
            hosts = HostedSet(home, network, peers, settings)
            try:
                await hosts.start()
                yield hosts
            finally:
                hosts.stop()
    finally:
        network.close()


def inside_namespaces() -> None:
    """Start this program again in namespaces of its own, unless it runs there: when it ends, so does each process it started."""
    if os.environ.get("ARIANE_HOSTS") is None:
        os.environ["ARIANE_HOSTS"] = "1"
        os.execvp("unshare", ["unshare", *NAMESPACES, sys.executable, *sys.argv])

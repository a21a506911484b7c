"""Real Java peers for interop tests and benches: name server, broker, clients, tools, each in its own process.

    if reason := java.available(): pytest.skip(reason)
    with java.name_server(home / "ns") as ns, java.broker(home / "b", ns.addr) as broker:
        lines = java.run("ariane.peers.Produce", [ns.addr, "T", "P", "10"])      # one JSON line per message
        with java.start("ariane.peers.Consume", [ns.addr, "T", "G", "*", "10", "30"]) as consumer: ...
        java.run(java.ADMIN, ["clusterList", "-n", ns.addr])

The functions of this module are those of 4.9.4; `V5` has the same for 5.3.3: `java.V5.broker(…)`. The jars are fetched from Maven
Central once, to ARIANE_PEERS_DIR (default ~/.cache/ariane/peers), together with a jar of small programs of this project
(`peers/`) and a class-data archive of all classes they load, which makes a start twice as fast. All processes end with the
`with` block, and with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ariane.net.listening.fixed_ports import choose_free_port
from ariane.testing.peers.program_runner import ProgramRunner

PEERS = Path(__file__).resolve().parent / "peers"
ADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
BENCHMARK_PRODUCER = "org.apache.rocketmq.example.benchmark.Producer"
JAVA_MIN = 17
READY_S = 60.0
STOP_S = 30.0
TEST_HEAP = ("-Xms256m", "-Xmx512m")
FILL_STEP_S = 600.0
CACHE_LAYOUT = b"3"  # increase it when the contents of a cache directory change
PROGRAMS = "programs.jar"
ARCHIVE = "classes.jsa"
LOGS_OF_5X = "logback_5x.xml"

_SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

# A server generates a certificate at its start by default, which costs it five times the CPU time of all else.
_WITHOUT_TLS = "-Dtls.server.mode=disabled"

# By default a 5.x broker compares 38 MB of timers with their file each second, and spins for 3 s until it writes metrics.
_QUIET_5X = {"timerFlushIntervalMs": "60000", "transactionMetricFlushInterval": "100"}

# Programs and their arguments (after the name server) whose classes represent those of all clients and tools.
_SAMPLE_RUNS = {
    "Produce": ("T", "P", "5"),
    "Consume": ("T", "G", "*", "5", "30"),
    "Admin": ("clusterList", "topicList", "consumerProgress"),
}

# Logs of a server that has started, and what they contain then. A broker of 4.9.4 is registered before it reports its start.
_BOOTED = ("output.log", "boot success")
_REGISTERED_5X = ("server.log", "Registering current broker to name server completed")

# Modules that 4.9.4 accesses by reflection on Java 17.
_OPENS = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)

_LOGBACK = """<configuration>
  <appender name="file" class="{package}ch.qos.logback.core.FileAppender">
    <file>{home}/server.log</file><encoder><pattern>%d %p %t %logger - %m%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="file"/></root>
</configuration>
"""


class JavaServer(NamedTuple):
    """A running Java name server or broker."""

    addr: str
    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid


class JavaProgram:
    """A running Java program; `lines` yields its output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: list[str] = []
        self._more = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def lines(self, deadline: float) -> Iterator[str]:
        """Yield output lines until the program ends or `time.monotonic()` passes `deadline`."""
        index = 0
        while True:
            with self._more:
                while index == len(self._lines) and not self._has_ended:
                    if not self._more.wait(max(0.0, deadline - time.monotonic())):
                        return
                if index == len(self._lines):
                    return
                line = self._lines[index]
            index += 1
            yield line

    def events(self, deadline: float) -> Iterator[Any]:
        """Yield the output lines that are JSON objects, decoded."""
        for line in self.lines(deadline):
            if line.startswith("{"):
                yield json.loads(line)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self._lines.append(line.rstrip("\n"))
                self._more.notify_all()
        with self._more:
            self._has_ended = True
            self._more.notify_all()


@functools.cache
def java_version() -> str:
    """Return what `java -version` prints; empty without Java."""
    java = shutil.which("java")
    if java is None:
        return ""
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr


# --- a release ---


class JavaRelease:
    """The peers of one release of RocketMQ: servers, clients and tools."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._pom = PEERS / version / "pom.xml"  # with programs for this release only next to it

    def available(self) -> str | None:
        """Return why the peers cannot run on this machine, or None if they can."""
        return self._unavailable

    def classpath(self) -> str:
        """Return the class path of the jars and programs, for `java -cp`. Call `available` first."""
        # The order is fixed: an archive is valid only for the class path that it was dumped with.
        return ":".join([str(self._cache / PROGRAMS), *map(str, sorted((self._cache / "lib").glob("*.jar")))])

    def quick_start(self) -> tuple[str, ...]:
        """Return JVM arguments for short-lived peers: a small heap, C1 and the serial collector, classes from the archive.

        Servers that start with these explicit arguments accept TLS, with a generated certificate; those without `jvm_args` do not.
        Benches pass their own arguments: they measure the JVM as users run it.
        """
        return (*TEST_HEAP, *_SHORT_LIVED, f"-XX:SharedArchiveFile={self._cache / ARCHIVE}")

    @contextlib.contextmanager
    def name_server(
        self,
        home: Path,
        *,
        port: int = 0,
        properties: Mapping[str, str] | None = None,
        jvm_args: Sequence[str] | None = None,
        orderly: bool = False,
    ) -> Iterator[JavaServer]:
        """Run a Java name server with its files in `home`. It is killed unless `orderly`: an orderly stop takes 3 s."""
        port = port or free_port()
        settings = {"listenPort": str(port), "kvConfigPath": str(home / "kvConfig.json"), **(properties or {})}
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        with self._server(main, home, settings, jvm_args, [_BOOTED]) as server:
            yield server
            if not orderly:
                server.process.kill()

    @contextlib.contextmanager
    def broker(
        self,
        home: Path,
        namesrv: str,
        *,
        port: int = 0,
        properties: Mapping[str, str] | None = None,
        jvm_args: Sequence[str] | None = None,
        wait: bool = True,
    ) -> Iterator[JavaServer]:
        """Run a Java broker `broker-a` on 127.0.0.1 with its store in home/store. With `wait`, return once it is registered."""
        port = port or free_port()
        settings = {
            "brokerName": "broker-a",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": str(port),
            "namesrvAddr": namesrv,
            "storePathRootDir": str(home / "store"),
            "storePathCommitLog": str(home / "store" / "commitlog"),
            "waitTimeMillsInSendQueue": "10000",  # on a busy machine it would refuse sends that waited 200 ms
            **(_QUIET_5X if self.version.startswith("5") else {}),
            **(properties or {}),
        }
        ready = [_BOOTED, *([_REGISTERED_5X] if self.version.startswith("5") else [])] if wait else []
        with self._server("org.apache.rocketmq.broker.BrokerStartup", home, settings, jvm_args, ready) as server:
            yield server

    @contextlib.contextmanager
    def start(
        self,
        main: str,
        args: Sequence[str],
        *,
        jvm_args: Sequence[str] | None = None,
        home: Path | None = None,
        classes: Sequence[str] = (),
    ) -> Iterator[JavaProgram]:
        """Run a Java program until the end of the block, or until it exits. `classes` follow those of the peers."""
        with tempfile.TemporaryDirectory() as temporary:
            directory = home or Path(temporary)
            _configure_logs(directory)
            java = [*(jvm_args or self.quick_start()), *_home_properties(directory)]
            path = ":".join([self.classpath(), *classes])
            process = _spawn([*java, "-cp", path, main, *args], subprocess.PIPE, directory)  # tools leave files in it
            try:
                yield JavaProgram(process)
            finally:
                _stop(process)

    def run(
        self,
        main: str,
        args: Sequence[str],
        *,
        timeout_s: float = 120,
        jvm_args: Sequence[str] | None = None,
        status: int = 0,
        home: Path | None = None,
        classes: Sequence[str] = (),
    ) -> list[str]:
        """Run a Java program and return the lines it printed.

        Without `jvm_args`, `home` and `classes` it runs in a JVM that has run others before.
        `home` is its rocketmq.home.dir: tools read their account from conf/tools.yml there.

        Raises:
            RuntimeError: it did not exit with `status` in time; contains its output.
        """
        if jvm_args or home or classes:
            with self.start(main, args, jvm_args=jvm_args, home=home, classes=classes) as program:
                lines = list(program.lines(time.monotonic() + timeout_s))
                exit_status = program.process.poll()
                exit_status = exit_status if exit_status is not None else _wait(program.process, 5)
        else:
            lines, exit_status = self._programs.run(main, args, timeout_s)
        if exit_status != status:
            raise RuntimeError(f"{main} {' '.join(args)} exited with {exit_status}:\n" + "\n".join(lines[-40:]))
        return lines

    @functools.cached_property
    def _programs(self) -> ProgramRunner:
        directory = Path(tempfile.mkdtemp(prefix="ariane-java-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        _configure_logs(directory)
        command = [*self.quick_start(), *_home_properties(directory), "-cp", self.classpath(), "ariane.peers.Serve"]
        return ProgramRunner(lambda: _spawn(command, subprocess.PIPE, directory, subprocess.PIPE))

    @functools.cached_property
    def _unavailable(self) -> str | None:
        java = shutil.which("java")
        if java is None:
            return f"java not found on the PATH: install Java >= {JAVA_MIN} (apt-get install openjdk-17-jdk-headless)"
        version = java_version()
        match = re.search(r'version "(\d+)', version)
        if match is None or int(match[1]) < JAVA_MIN:
            return f"Java >= {JAVA_MIN} is required, found: {version.splitlines()[0] if version else 'none'}"
        if not self._ready():
            for tool, package in (("mvn", "maven"), ("javac", "openjdk-17-jdk-headless")):
                if shutil.which(tool) is None:
                    return f"{tool} not found on the PATH: it is needed to fetch the Java peers (apt-get install {package})"
            try:
                self._fill()
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                text = str(error.output or error).strip() or str(error)
                return f"Cannot fetch the Java peers of {self.version} from Maven Central: {text.splitlines()[0]}"
        return None

    @functools.cached_property
    def _cache(self) -> Path:
        """The cache directory for these programs and this JVM."""
        digest = hashlib.sha256(CACHE_LAYOUT + java_version().encode())  # an archive belongs to one JVM
        for path in (self._pom, *self._sources()):
            digest.update(path.read_bytes())
        root = Path(os.environ.get("ARIANE_PEERS_DIR", Path.home() / ".cache" / "ariane" / "peers"))
        return root.resolve() / digest.hexdigest()[:16]

    def _ready(self) -> bool:
        return (self._cache / ARCHIVE).is_file()

    def _sources(self) -> list[Path]:
        """Return the programs of all releases, and those of this one."""
        return sorted([*(PEERS / "ariane").rglob("*.java"), *self._pom.parent.rglob("*.java")])

    def _fill(self) -> None:
        """Fetch, compile and archive. A lock lets one of several test processes do the work while the others wait."""
        cache = self._cache
        cache.mkdir(parents=True, exist_ok=True)
        with (cache.parent / f"{cache.name}.lock").open("w") as lock, tempfile.TemporaryDirectory() as scratch:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._ready():
                return
            maven = ["mvn", "-q", "-B", "-f", str(self._pom), "dependency:copy-dependencies"]
            _checked([*maven, f"-DoutputDirectory={cache / 'lib'}", f"-Dproject.build.directory={scratch}/target"])
            sources = map(str, self._sources())
            _checked(["javac", "-nowarn", "-cp", f"{cache}/lib/*", "-d", f"{scratch}/classes", *sources])
            _checked(["jar", "--create", "--file", str(cache / PROGRAMS), "-C", f"{scratch}/classes", "."])
            self._archive_classes(Path(scratch))

    def _archive_classes(self, scratch: Path) -> None:
        """Dump the classes that servers, clients and tools load into one archive for all of them."""

        def listing(name: str) -> list[str]:
            return [*TEST_HEAP, f"-XX:DumpLoadedClassList={scratch / name}.classes"]

        with (
            self.name_server(scratch / "namesrv", jvm_args=listing("namesrv"), orderly=True) as names,
            self.broker(scratch / "broker", names.addr, jvm_args=listing("broker")),
        ):
            for program, args in _SAMPLE_RUNS.items():
                self.run(f"ariane.peers.{program}", [names.addr, *args], jvm_args=listing(program))
        # Classes of other loaders are named with ids of one run ("source:"): lists of several runs cannot share these.
        listed = {
            line: None
            for path in sorted(scratch.glob("*.classes"))
            for line in path.read_text().splitlines()
            if "source:" not in line
        }
        merged = scratch / "all"
        merged.write_text("\n".join(listed) + "\n")
        dumped = self._cache / "incomplete.jsa"
        dump = ["java", *_SHORT_LIVED, "-Xshare:dump", f"-XX:SharedClassListFile={merged}"]
        _checked([*dump, f"-XX:SharedArchiveFile={dumped}", "-cp", self.classpath()])
        dumped.rename(self._cache / ARCHIVE)  # the last step: its presence marks the cache as complete

    @contextlib.contextmanager
    def _server(
        self,
        main: str,
        home: Path,
        settings: Mapping[str, str],
        jvm_args: Sequence[str] | None,
        ready: Sequence[tuple[str, str]],
    ) -> Iterator[JavaServer]:
        path = _configure_logs(home) / "server.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        output = (home / "output.log").open("w")
        java = [*(jvm_args or (*self.quick_start(), _WITHOUT_TLS)), *_home_properties(home)]
        process = _spawn([*java, "-cp", self.classpath(), main, "-c", str(path)], output)
        server = JavaServer(f"127.0.0.1:{settings['listenPort']}", process)
        try:
            for log, text in ready:
                _wait_for(text, home / log, process, home / "output.log")
            yield server
        finally:
            _stop(process)
            output.close()


# --- ports, processes ---


def _checked(command: Sequence[str]) -> None:
    output, error = subprocess.PIPE, subprocess.STDOUT
    subprocess.run(command, check=True, stdout=output, stderr=error, text=True, timeout=FILL_STEP_S)


def free_port() -> int:
    """Return a port that is free together with its neighbours: a broker uses port − 2, port and port + 1."""
    return choose_free_port((-2, -1, 0, 1))


def free_ports() -> tuple[int, int]:
    """Return free ports for a name server and a broker: two calls of `free_port()` could return neighbours."""
    port = choose_free_port((-3, -2, -1, 0, 1))
    return port - 3, port


def _configure_logs(home: Path) -> Path:
    """Direct all logs of a peer to a file in `home` and return its conf directory."""
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in ("namesrv", "broker", "tools"):
        (conf / f"logback_{name}.xml").write_text(_LOGBACK.format(home=home, package=""))
    # 5.x contains logback under another name.
    (conf / LOGS_OF_5X).write_text(_LOGBACK.format(home=home, package="org.apache.rocketmq.logging."))
    return conf


def _home_properties(home: Path) -> list[str]:
    logs = f"-Drmq.logback.configurationFile={home / 'conf' / LOGS_OF_5X}"
    return [f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", logs]


def _wait_for(text: str, log: Path, process: subprocess.Popen[str], output: Path) -> None:
    """Wait until `text` is in a log of a server that is starting."""
    deadline = time.monotonic() + READY_S
    while not log.exists() or text not in log.read_text():
        if process.poll() is not None:
            raise RuntimeError(f"Java server exited with {process.returncode}:\n{output.read_text()[-4000:]}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"Java server is not ready after {READY_S} s: {text!r} is not in {log}")
        time.sleep(0.05)


def events(lines: Sequence[str]) -> list[Any]:
    """Return the JSON objects among `lines`."""
    return [json.loads(line) for line in lines if line.startswith("{")]


def _spawn(
    args: Sequence[str], output: Any, cwd: Path | None = None, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    command = ["java", *_OPENS, *args]
    # The signal comes when the thread ends that has started the process. One that reads its input ends with that.
    if stdin == subprocess.DEVNULL and (setpriv := shutil.which("setpriv")):
        command = [setpriv, "--pdeathsig", "KILL", *command]
    env = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
    return subprocess.Popen(command, stdin=stdin, stdout=output, stderr=subprocess.STDOUT, text=True, env=env, cwd=cwd)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        if _wait(process, STOP_S) is None:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _wait(process: subprocess.Popen[str], seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


V4 = JavaRelease("4.9.4")
V5 = JavaRelease("5.3.3")
available, classpath, quick_start = V4.available, V4.classpath, V4.quick_start
name_server, broker, start, run = V4.name_server, V4.broker, V4.start, V4.run

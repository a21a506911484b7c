"""CPU time of a message in our broker after 1, 2, 5, 10 … 50 million stored messages.

    python benches/stored.py [--server native] [--to 5000000] [--sends 1000000] [--queries 2000] [--json] [--out FILE] [--dir DIR]

One broker on a fresh store is filled in batches (small bodies, a key on each message). Measured at each step, in CPU time of its
process:
  send     pipelined sends to another topic, 128 B
  pull     the filled topic from its oldest message on, for 4 s: 16 queues, 32 per pull
  query    by key, drawn from all stored keys
and its resident memory. Printed last for each: the largest departure from the first step. It takes about 250 bytes of disk per
message (50 M: 12 GB), and a minute or so for 5 M messages. `--to 50000000` is the range of the targets.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import load_program
from load_program import LoadProgram
from loads import program
from servers import Running, make_topic, memory_mib, started

STEPS = (1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000)
QUEUES = 16
TOPIC = "Stored"
PULL_S = 4
FLAT = {"native": 0.15, "python": 0.25, "ariane": 0.25}  # largest expected departure by implementation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=int, default=5_000_000, help="messages stored at the last step")
    parser.add_argument("--server", choices=tuple(FLAT), default="ariane", help="implementation (default: ARIANE_IMPL)")
    parser.add_argument("--sends", type=int, default=1_000_000, help="measured at each step")
    parser.add_argument("--load-program", type=Path, help="path of ariane-load (default: build it)")
    parser.add_argument("--queries", type=int, default=2_000, help="at each step")
    parser.add_argument(
        "--dir", type=Path, default=None, help="where the store goes (default: the temporary directory)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as the last line")
    parser.add_argument("--out", type=Path, help="write the result there too")
    args = parser.parse_args()
    steps = [step for step in STEPS if step < args.to] + [args.to]
    with (
        tempfile.TemporaryDirectory(prefix="ariane-bench-", dir=args.dir) as place,
        started(args.server, "", Path(place)) as running,
    ):
        make_topic(running.addr, TOPIC, QUEUES)
        loader = LoadProgram(args.load_program or load_program.build(), running)
        found: list[dict[str, float]] = []
        stored = 0
        for step in steps:
            to_fill = ["--topic", TOPIC, "--queues", QUEUES, "--size", 16, "--keys"]
            program("filling.py", running, [*to_fill, "--first", stored, "--count", step - stored], has_pid=False)
            stored = step
            found.append({"stored": step, **measured(running, loader, stored, args)})
            print("  ".join(f"{name} {value:,.2f}" for name, value in found[-1].items()), file=sys.stderr)
    result = {"server": args.server, "steps": found, "departure": departure(found)}
    print(table(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.json:
        print(json.dumps(result))


def measured(running: Running, loader: LoadProgram, stored: int, args: argparse.Namespace) -> dict[str, float]:
    sends = ["--topic", "Sent", "--create-topic", "--messages", args.sends, "--readable"]
    pulls = ["--topic", TOPIC, "--queues", QUEUES, "--repeat", "--duration", PULL_S]
    queries = ["--topic", TOPIC, "--keys", stored, "--count", args.queries]
    queried = program("keys.py", running, queries)  # first: it waits until all is in the index
    return {
        "send cpu us": loader.run("send", *sends)["broker_cpu_us"],
        "pull cpu us": loader.run("pull", *pulls)["broker_cpu_us"],
        "query cpu us": queried["cpu_us"],
        "RSS MiB": memory_mib(running.pid)["VmRSS"],
    }


def departure(found: list[dict[str, float]]) -> dict[str, float]:
    """Return the largest relative difference of each cost from that at the first step."""
    costs = [name for name in found[0] if name.endswith(" us")]
    return {
        name: round(max((abs(step[name] / found[0][name] - 1) for step in found[1:]), default=0.0), 3) for name in costs
    }


def table(result: dict[str, Any]) -> str:
    names = list(result["steps"][0])
    lines = ["".join(f"{name:>16}" for name in names)]
    lines += ["".join(f"{step[name]:16,.2f}" for name in names) for step in result["steps"]]
    for name, value in result["departure"].items():
        expected = FLAT[result["server"]]
        verdict = "" if value <= expected else f"  SHORT: expected within {expected:.0%}"
        lines.append(f"{name}: at most {value:.1%} from the first step{verdict}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

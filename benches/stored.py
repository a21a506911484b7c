"""What a message costs our broker when it has stored 1, 2, 5, 10 … 50 million before it.

    python benches/stored.py [--to 10000000] [--sends 200000] [--pulls 1000000] [--queries 2000] [--json] [--out FILE] [--dir DIR]

One broker on a fresh store is filled in batches (small bodies, a key on each message), and at each step along the way measured, in
CPU time of its process:
  send     pipelined sends to a topic of their own, 128 B
  pull     the oldest messages, 16 queues, 32 per pull
  query    by key, drawn from all keys stored so far
and its resident memory. Printed last for each: the largest departure from the first step, which is to stay within 10 %. It takes
about 250 bytes of disk a message (50 M: 12 GB), and a minute or so for 5 M messages.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from broker import program
from servers import make_topic, memory_mib, started

STEPS = (1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000)
QUEUES = 16
TOPIC = "Stored"
FLAT = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=int, default=10_000_000, help="messages stored at the last step")
    parser.add_argument("--sends", type=int, default=200_000, help="measured at each step")
    parser.add_argument("--pulls", type=int, default=1_000_000, help="messages pulled at each step")
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
        started("ariane", "", Path(place)) as running,
    ):
        make_topic(running.addr, TOPIC, QUEUES)
        found: list[dict[str, float]] = []
        stored = 0
        for step in steps:
            to_fill = ["--topic", TOPIC, "--queues", QUEUES, "--size", 16, "--keys"]
            program("filling.py", running, [*to_fill, "--first", stored, "--count", step - stored], "")
            stored = step
            found.append({"stored": step, **measured(running, stored, args)})
            print("  ".join(f"{name} {value:,.2f}" for name, value in found[-1].items()), file=sys.stderr)
    result = {"steps": found, "departure": departure(found)}
    print(table(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.json:
        print(json.dumps(result))


def measured(running: Any, stored: int, args: argparse.Namespace) -> dict[str, float]:
    sends = ["--topic", "Sent", "--count", args.sends, "--warm", args.sends // 10]
    pulls = ["--topic", TOPIC, "--queues", QUEUES, "--count", args.pulls]
    queries = ["--topic", TOPIC, "--keys", stored, "--count", args.queries]
    queried = program("keys.py", running, queries)  # first: it waits until all is in the index
    return {
        "send cpu us": program("pipelined.py", running, sends)["cpu_us"],
        "pull cpu us": program("pulling.py", running, pulls)["cpu_us"],
        "query cpu us": queried["cpu_us"],
        "RSS MiB": memory_mib(running.pid)["VmRSS"],
    }


def departure(found: list[dict[str, float]]) -> dict[str, float]:
    """By how much, at most, a cost differs from the one at the first step."""
    costs = [name for name in found[0] if name.endswith(" us")]
    return {
        name: round(max((abs(step[name] / found[0][name] - 1) for step in found[1:]), default=0.0), 3) for name in costs
    }


def table(result: dict[str, Any]) -> str:
    names = list(result["steps"][0])
    lines = ["".join(f"{name:>16}" for name in names)]
    lines += ["".join(f"{step[name]:16,.2f}" for name in names) for step in result["steps"]]
    for name, value in result["departure"].items():
        verdict = "" if value <= FLAT else f"  SHORT: expected within {FLAT:.0%}"
        lines.append(f"{name}: at most {value:.1%} from the first step{verdict}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

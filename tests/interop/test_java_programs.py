"""Java programs that run one after another in one JVM: output, exit status, and what a program does that ends the JVM."""

from __future__ import annotations

import pytest

from ariane.testing import java

PEERS = ["a,b", "broker:0,broker:1", "room"]


def test_programs_share_a_jvm_until_one_ends_it() -> None:
    first = java.run("ariane.peers.Allocate", PEERS)
    idle = java.V4._programs._idle  # tests that ran before may have left several: the last one runs next
    process = idle[-1]
    assert java.run("ariane.peers.Allocate", PEERS) == first
    assert len(first) > 5
    with pytest.raises(RuntimeError, match=r"(?s)exited with 2:.*NumberFormatException"):
        java.run("ariane.peers.Produce", ["127.0.0.1:1", "T", "P", "many"])
    with pytest.raises(RuntimeError, match=r"(?s)exited with 1:.*ClassNotFoundException"):
        java.run("ariane.peers.Nothing", [])
    assert idle[-1] is process
    assert any("--topic" in line for line in java.run(java.ADMIN, ["topicRoute"], status=1))
    assert process.poll() == 1, "mqadmin ends the JVM if an option is missing"
    assert java.run("ariane.peers.Allocate", PEERS) == first

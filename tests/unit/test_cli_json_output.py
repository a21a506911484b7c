"""Values as JSON for `--json`."""

from __future__ import annotations

from ariane.cli.output.json_output import to_builtins
from ariane.model.topic import TopicConfig


def test_members_that_are_not_set_are_left_out() -> None:
    printed = to_builtins({"T": TopicConfig(topic_name="T")})["T"]
    assert printed["topicName"] == "T"
    assert "attributes" not in printed
    assert to_builtins(TopicConfig(attributes={"message.type": "FIFO"}))["attributes"] == {"message.type": "FIFO"}

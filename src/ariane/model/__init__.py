"""Frozen values of RocketMQ's domain: messages, queues, topics, groups, ids. They do no I/O and read no clock."""

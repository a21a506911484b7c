"""The nouns of RocketMQ as frozen values: messages, queues, topics, groups, ids. Nothing here does I/O or reads a clock."""

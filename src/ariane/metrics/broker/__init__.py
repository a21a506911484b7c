"""A broker's own endpoint: what it counts, in our names and in those of RocketMQ 5."""

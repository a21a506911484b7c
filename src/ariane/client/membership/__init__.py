"""Members of a consumer group: heartbeats, rebalancing, queue locks, and the fetch loop of each queue."""

"""Topics: routes, queues, changes and deletion."""

"""From rows to queues: encoded messages, their queues and requests, and the client that sends them; `sink` combines these."""

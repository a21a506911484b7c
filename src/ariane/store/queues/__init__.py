"""Consume queues: the records of each topic and queue in order, built from the log."""

"""Connections of executors and planners to servers: blocking, without a loop. Who may ask and how is an `access.Access`."""

"""The jobs: functions from messages and tables to tables, and `run`, which keeps them going over a topic and a directory."""

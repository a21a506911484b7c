"""The jobs: functions from DataFrame to DataFrame, and `run`, which keeps them going over a topic and a directory."""

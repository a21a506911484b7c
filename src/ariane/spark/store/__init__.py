"""From a broker's store files to rows: the commit log and its records (`commit_log`), and the tasks (`log_task`)."""

"""From the files of a broker's commit log to rows: the log and its records (`commit_log`), a part of it to rows (`tasks`)."""

"""Texts for people: the reader's language and time zone, numbers and times, without invisible characters."""

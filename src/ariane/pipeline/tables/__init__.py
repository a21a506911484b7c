"""Functions from DataFrame to DataFrame: each computes a table."""

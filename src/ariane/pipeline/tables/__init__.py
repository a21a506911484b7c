"""Functions that compute the tables: from messages in Arrow to base tables, and from DataFrame to DataFrame for all others."""

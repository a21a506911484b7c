"""The commit log: every record in one sequence, its checkpoint, and what is deleted or corrupt in it."""

"""What a replay reads, and the file of its results."""

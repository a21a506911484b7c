"""Small Java programs for tests and benches, and how they are run."""

"""Commands that show and change a running cluster."""

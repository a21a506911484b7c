"""Use cases of operators, as functions that return values; the command line and the console only show them."""

"""Dead letters: list, selection, export and resending."""

"""Listeners that skip messages consumed before, and the stores that remember these."""

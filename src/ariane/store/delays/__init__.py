"""Delayed messages: levels, timers, and what is already delivered."""

"""Delivery after the store: held pulls, POP, delayed messages, and what is stored again."""

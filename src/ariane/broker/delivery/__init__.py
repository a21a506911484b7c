"""Delivery after the store: held pulls, delayed messages, and what is stored again."""

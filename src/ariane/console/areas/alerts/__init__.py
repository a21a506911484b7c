"""Alerts and their receivers."""

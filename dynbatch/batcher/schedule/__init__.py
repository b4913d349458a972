"""Schedules nodes: which ones run together, and in which order."""

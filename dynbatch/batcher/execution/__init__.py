"""Runs the plan."""

"""Tells what a run did, and why."""

"""Data that several examples read."""

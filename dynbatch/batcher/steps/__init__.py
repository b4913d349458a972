"""Batch steps and their blocks of memory."""

"""Blocks: functions over a sentence's matrices, one node a sentence."""

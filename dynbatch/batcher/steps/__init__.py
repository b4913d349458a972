"""A batch step and its blocks of memory."""

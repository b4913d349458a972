"""A model that learns from rewards: it writes, is told how good that was, and is trained."""

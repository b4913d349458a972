"""Sums, means, the largest, running sums and variances: of tokens, features or segments."""

"""Carries out plans: batch steps, kernels, and gradients of parameters."""

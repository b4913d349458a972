"""Common parts of loops of cells on a GPU: rows by address, wide weights, their gradients."""

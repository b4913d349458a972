"""What loops of cells share on a GPU: rows by address, wide weights and their gradients."""

"""The memory of a BERT-base training step: estimated, really run, and beside PyTorch's."""

"""Translation: a source to a target, by an LSTM with attention or a Transformer."""

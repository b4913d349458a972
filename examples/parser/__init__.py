"""A transition-based dependency parser with a stack LSTM."""

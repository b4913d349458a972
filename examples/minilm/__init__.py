"""MiniLM: vectors of sentences from published weights, and fine-tuning."""

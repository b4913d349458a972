"""A published language model, fine-tuned on one's own text by LoRA."""

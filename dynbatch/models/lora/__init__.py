"""LoRA: small trained matrices beside frozen weights."""

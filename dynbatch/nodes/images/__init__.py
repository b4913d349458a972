"""Convolutions and pools of images of different sizes."""

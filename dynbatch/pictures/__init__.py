"""Pictures of what runs: each is one call, an SVG that needs nothing else, in light and in dark.

A `Picture` shows itself in notebooks; `save("x.svg")` writes the drawing, `save("x.html")` a page.
"""

from dynbatch.pictures.generation import generation
from dynbatch.pictures.memory import memory
from dynbatch.pictures.padding import padding
from dynbatch.pictures.picture import Picture
from dynbatch.pictures.sentence import sentence
from dynbatch.pictures.timeline import timeline
from dynbatch.pictures.training import training

__all__ = ["Picture", "generation", "memory", "padding", "sentence", "timeline", "training"]

"""A convolutional network that tells categories of text, on the Brown corpus."""

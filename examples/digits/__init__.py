"""A convolutional network that reads handwritten digits, each image at its own size."""

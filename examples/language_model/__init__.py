"""A language model of bytes on documents of any lengths."""

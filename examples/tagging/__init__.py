"""A part-of-speech tagger that spells rare words, on the Brown corpus."""

"""Generation of text: how tokens are chosen, when a sentence ends, and how its text is streamed."""

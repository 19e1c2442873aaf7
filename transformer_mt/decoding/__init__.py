"""Search, and translation of text with it."""

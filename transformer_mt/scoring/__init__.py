"""Scores of translations and of word alignments."""

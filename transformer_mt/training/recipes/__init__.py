"""Recipes that fit a text and a time, which the command `new` writes."""

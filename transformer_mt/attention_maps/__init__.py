"""Pages that show what a model attends to."""

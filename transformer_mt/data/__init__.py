"""From text files to batches of numbers. Nothing here knows of the model."""

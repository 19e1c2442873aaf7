"""Models of other programs: reads their files and converts them. No file of theirs can run code."""

"""Models of other programs: reads those of OPUS-MT, in the layouts of Marian and of Hugging Face."""

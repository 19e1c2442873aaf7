"""How large a model is, and what training it takes: counted from the config, nothing heavy."""

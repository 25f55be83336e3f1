"""Training of small character-level models: the sample model, and models of a user's own text."""

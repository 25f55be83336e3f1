"""Corpora: from files to texts (`readers`), and from texts to documents of token ids (`windows`)."""

"""Prompt files, closed vocabularies, and the pins that hold them."""

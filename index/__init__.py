"""Retrieval over Chinese laws and standards: a library without a server in it."""

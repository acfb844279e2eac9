"""`cg-rag wheelhouse`: everything that a machine without a network needs, in one folder.

Rule: pip does the downloading, with the configuration that its user gave it; nothing here knows where packages come
from. What is delivered is what the checksums list, and the scripts of the delivery need nothing but a shell, coreutils
and a Python.
"""

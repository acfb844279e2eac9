"""One module per source format; each yields `Article` values with the place they came from."""

"""Measured rows, the laws that are fitted to them, and the files that the twin reads them from."""

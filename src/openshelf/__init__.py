"""Openshelf: one memory address space for AI."""

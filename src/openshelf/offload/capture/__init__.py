"""From a model to a program: its code runs once, and every operator that torch would call is recorded."""

"""The parts of bench/tables.py. Each has `rows(asked)`, and its text says what it measures."""

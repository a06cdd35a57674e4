"""Where the bytes of a space are, and how they move: base.py is the contract, beside it one file per kind of space."""

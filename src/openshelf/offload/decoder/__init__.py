"""A language model that generates: one plan for each bucket of lengths, keys and values in a tier below."""

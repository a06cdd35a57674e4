"""Examples take as long as they take: a busy machine is no failure."""

from hypothesis import settings

settings.register_profile("patient", deadline=None, max_examples=60)
settings.load_profile("patient")

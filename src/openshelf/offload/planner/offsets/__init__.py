"""From moves to offsets: where in the arena every storage is."""

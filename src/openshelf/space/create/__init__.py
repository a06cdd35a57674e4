"""Making and finding spaces: the registry of this user's spaces, their files, their flash tier."""

"""Bytes on their way: the homes of storages, and what moves them between a home and the arena."""

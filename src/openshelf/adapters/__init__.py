"""Engines that read and write KVPools. Each adapter needs its own extra; nothing is imported before it is asked for."""

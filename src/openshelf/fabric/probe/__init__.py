"""Measuring this machine: its memory, its disk, its compute, as a Fabric."""

"""Whole workloads in virtual time: what training (and serving) takes on a Fabric."""

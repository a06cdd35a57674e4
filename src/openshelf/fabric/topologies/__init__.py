"""Topologies by generator: plain numbers and classes of links and switches in, a `Network` out."""

from openshelf.fabric.topologies.clos import fat_tree, leaf_spine
from openshelf.fabric.topologies.edges import Edge, graph
from openshelf.fabric.topologies.far import dragonfly, sites, with_memory
from openshelf.fabric.topologies.meanings import MEANINGS
from openshelf.fabric.topologies.meshes import Dimension, full_mesh, nd_full_mesh, product, ring, single_switch, torus
from openshelf.fabric.topologies.rails import rail_only, rail_optimised, scalepool

__all__ = [
    "MEANINGS",
    "Dimension",
    "Edge",
    "dragonfly",
    "fat_tree",
    "full_mesh",
    "graph",
    "leaf_spine",
    "nd_full_mesh",
    "product",
    "rail_only",
    "rail_optimised",
    "ring",
    "scalepool",
    "single_switch",
    "sites",
    "torus",
    "with_memory",
]

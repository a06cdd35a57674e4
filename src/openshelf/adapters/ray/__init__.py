"""Ray: a keeper on each node of a cluster that runs, and a space over them.

    keepers = start_keepers("demo", contribute="64GiB")

    @ray.remote
    def work(keepers):
        with keepers.open() as space: ...      # on whatever node this runs

Ray starts and ends the keepers; what they serve are ordinary spaces of the nodes.
"""

from openshelf.adapters.ray.keepers import Keepers, start_keepers

__all__ = ["Keepers", "start_keepers"]

"""Devices: memory beside the host's, by kind. Asking for one that is not there is an error, never another instead."""

from openshelf.space.devices._block import Block
from openshelf.space.devices._device import ARENAS, Device
from openshelf.space.devices._stream import Stream
from openshelf.space.devices.base import Arena, Queue

__all__ = ["ARENAS", "Arena", "Block", "Device", "Queue", "Stream"]

"""Devices: memory beside the host's, by kind, and replicas of arrays there.

Asking for a device that is not there is an error, never another one instead. base.py is the contract of a kind of
device; host.py and cuda.py are the kinds that there are.
"""

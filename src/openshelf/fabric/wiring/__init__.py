"""What a topology is made of: media, protocols, wires, and the network that they become."""

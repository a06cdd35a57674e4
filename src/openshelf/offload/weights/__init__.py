"""Where weights come from and the files they live in: packed files, safetensors shards, checkpoints."""

"""What is asked for: traces of requests, real and made up, and what replays them."""

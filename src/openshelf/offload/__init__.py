"""Run and train models larger than their memory, by a plan."""

"""The parts of workloads.py: operators, training, serving, speed."""

"""What the machine takes: seconds of operators, rates of transfers."""

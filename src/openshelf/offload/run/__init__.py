"""A plan on the machine: its steps as instructions, what runs them, and what runs a model without a plan."""

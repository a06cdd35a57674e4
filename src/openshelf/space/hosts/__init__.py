"""A space over several hosts: who the hosts are, how one joins, and how calls reach the others."""

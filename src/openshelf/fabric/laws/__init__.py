"""Laws of communication: few constants from which the times of collectives and exchanges follow."""

"""From a program to a plan: which storage is in the arena when, and when each transfer begins."""

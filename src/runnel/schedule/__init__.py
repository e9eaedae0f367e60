"""Many refreshes: who is due, in which order, and what happens after a failure."""

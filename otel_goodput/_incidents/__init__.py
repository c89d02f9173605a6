"""What watches a live job for what goes wrong, and who is told of it."""

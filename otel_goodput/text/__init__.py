"""Text in and out: what may be shown, and lengths of time as people write them."""

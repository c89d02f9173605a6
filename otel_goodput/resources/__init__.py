"""What is known of the surroundings: attributes of the resource that spans and metrics bear."""

"""Models, sessions and their states as objects."""

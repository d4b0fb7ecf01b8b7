"""A real site that uses the app."""

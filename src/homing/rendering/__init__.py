"""Templates: files in a folder, compiled once, rendered within bounds."""

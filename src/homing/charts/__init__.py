"""Writes charts as SVG. Takes numbers and texts, and returns a document as text. Imports only msgspec."""

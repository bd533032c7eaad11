"""Writes charts as SVG. Takes plain numbers and texts, and returns a document as text. Imports nothing."""

"""Measurement of what binding is worth here: the same work unbound and bound, in alternating rounds."""

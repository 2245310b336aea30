"""Places to walk."""

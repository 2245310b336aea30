"""Search: the entries of a memory that are nearest to a query, and the views that together see most."""

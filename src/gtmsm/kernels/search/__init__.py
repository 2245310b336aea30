"""Search: which entries of a memory are nearest to a query, and which views together see most."""

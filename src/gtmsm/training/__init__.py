"""One loop for every experiment."""

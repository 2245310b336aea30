"""The model of the paper, about one density per file."""

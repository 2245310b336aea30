"""The paper, one density per file."""

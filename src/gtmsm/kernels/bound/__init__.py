"""What a frame adds to the bound, a launch for each of its terms."""

"""What a memory is asked: which entries are near or see most, where they are, and which frames are needed."""

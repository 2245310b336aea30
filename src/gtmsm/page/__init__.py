"""A page to walk in a world model's memory: the real world beside the imagined one."""

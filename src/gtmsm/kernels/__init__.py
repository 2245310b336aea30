"""The few hot loops: one readable reference each, and its fast twins."""

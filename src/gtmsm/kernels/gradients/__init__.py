"""From gradients to weights: where gradients go, and the optimiser over one vector of them all."""

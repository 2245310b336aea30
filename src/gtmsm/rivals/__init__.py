"""Rivals: other models that predict frames, with GTM-SM's frame coder, trained on the same windows."""

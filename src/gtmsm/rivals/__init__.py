"""Other ways to predict a walk from what was seen, with GTM-SM's frame coder, trained on the same windows."""

"""What the prior of rays asks of retrieved views."""

"""What every scheduler is made of."""

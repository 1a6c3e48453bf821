"""What holds calls back: rates that are learned from the service's answers, and the turns of an operator's calls."""

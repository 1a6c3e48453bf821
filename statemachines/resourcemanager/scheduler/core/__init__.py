"""The collaborators of every scheduler."""

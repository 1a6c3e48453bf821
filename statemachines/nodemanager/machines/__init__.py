"""The tables of the node manager's state machines."""

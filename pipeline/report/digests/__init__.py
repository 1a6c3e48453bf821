"""Digests: what the report keeps of a journal's rows, computed in one pass by the tasks that read them."""

"""The report over a journal: its tables, its page, and following a journal while it is written."""

"""What a journal is on disk: its columns, frames and segments."""

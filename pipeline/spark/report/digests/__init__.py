"""What the report keeps of a journal's rows, made in one pass by the tasks that read them."""

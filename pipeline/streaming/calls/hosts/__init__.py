"""Where users' functions run: an asyncio loop, or a pool of threads."""

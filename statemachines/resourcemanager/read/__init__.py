"""The read model of a running resource manager: what its pages, its REST API and its metrics show."""

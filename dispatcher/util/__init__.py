"""Small things that several packages need and that know nothing of them."""

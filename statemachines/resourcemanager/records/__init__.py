"""What the parts of the resource manager pass to each other: plain values. The lowest layer."""

"""Running a model and its original side by side."""

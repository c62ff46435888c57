"""Metal Shading Language for Apple GPUs: the dialect."""

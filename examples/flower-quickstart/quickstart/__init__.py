"""A usual Flower app: PyTorch, handwritten digits, ten clients."""

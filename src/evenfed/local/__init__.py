"""What a client does with the model it receives: the settings of local training, and their arithmetic."""

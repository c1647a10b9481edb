"""What runs add up to: figures per entry, paired differences with intervals, the noise floor."""

"""A model's layers in forms that train many clients at once."""

"""How clients are trained on one machine: one after another, by workers, in stacks or in slots."""

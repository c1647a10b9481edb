"""Training on one machine: the rounds, the engines that train clients, and the layers they are made of."""

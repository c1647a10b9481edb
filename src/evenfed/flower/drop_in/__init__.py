"""`Fair`: a fair algorithm in the place of Flower's FedAvg, for clients that do not use evenfed."""

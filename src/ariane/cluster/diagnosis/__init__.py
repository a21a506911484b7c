"""What is wrong with a cluster: its state as values, and checks of them."""

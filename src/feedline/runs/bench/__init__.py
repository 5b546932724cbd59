"""How fast data gets from its files to the training loop, stage by stage."""

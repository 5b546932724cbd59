"""The engines that carry out the plan of a pack: this machine, and a Ray cluster."""

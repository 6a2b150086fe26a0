"""Does the model fit into the memory that is here, with what stands beside it?"""

"""What ranks note of their collectives, as torch tells too little of it or at too high a price.

`collective_notes` are the groups and messages of a rank, `call_sites` from where it called its
newest collectives.
"""

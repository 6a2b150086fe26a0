"""Would a hang be seen here: may stacks be read, is there room to record in, is the clock right?"""

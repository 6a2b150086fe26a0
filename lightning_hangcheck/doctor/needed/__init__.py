"""What the run reads: is it there, is it whole, and is it of today where it must be?"""

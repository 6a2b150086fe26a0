"""The run folder of the contract: where each file lies, and how what it keeps is read again."""

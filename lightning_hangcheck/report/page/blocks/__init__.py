"""The parts of the page, laid out in numbers and words: no file is read, no HTML written."""

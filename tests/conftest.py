"""What holds for every test."""

import signal

# Tests that were started in the background of a shell ignore Ctrl-C, and so would every
# command that a test starts in order to interrupt it.
signal.signal(signal.SIGINT, signal.default_int_handler)

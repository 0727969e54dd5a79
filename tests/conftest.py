"""What holds for every test."""

import os
import signal

# Models of tests are tiny, and several processes share the cores: with more threads most time
# goes to waiting for one that has no core. Before anything imports torch.
os.environ["OMP_NUM_THREADS"] = "1"

# Tests that were started in the background of a shell ignore Ctrl-C, and so would every
# command that a test starts in order to interrupt it.
signal.signal(signal.SIGINT, signal.default_int_handler)

"""The kernel's part: bubblewrap, namespaces, seccomp."""

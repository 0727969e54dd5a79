"""Grades answers: runs untrusted code in a sandbox and compares outside it."""

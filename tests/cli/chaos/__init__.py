"""The parts of `millrace chaos`, each alone, on processes of the test itself.

Real services under faults are in tests/chaos, whole clusters under faults in tests/operations.
"""

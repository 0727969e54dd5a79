"""The trainer: sample groups in, policy versions out; all algorithm maths is here."""

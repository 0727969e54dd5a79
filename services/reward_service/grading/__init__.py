"""What every grader is given: tools, test sets, the verdict cache."""

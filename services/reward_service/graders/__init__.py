"""Every kind of grader, one file a noun; `scoring.GRADERS` lists them."""

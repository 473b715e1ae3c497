"""The tests: a mirror of gridsched/, plus stories/, e2e/ and tidy/."""

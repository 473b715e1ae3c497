"""The tests: a mirror of gridsched/, sim/ and loadtest/, plus stories/, e2e/, external/ and tidy/."""

"""Browsers without a screen, for the tests and pictures of the page: Chromium and Firefox behind one interface."""

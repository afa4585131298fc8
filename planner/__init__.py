"""Decisions: requests, rules, search, explanation, exports and the command line. Imports `cost_models` and `hardware`."""

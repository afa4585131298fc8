"""Reader of Hub `config.json` files: families as data, quirks as small functions, refusals by name."""

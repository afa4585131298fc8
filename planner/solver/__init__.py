"""Integer choices that the grid does not span, by CP-SAT. Knows no formula and no layout: tables of numbers in, choices out."""

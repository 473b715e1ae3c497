"""The console script. Composition only: no rule of the product lives here."""

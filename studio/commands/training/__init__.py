"""Commands that train models, measure them, or draw with them."""

"""From a text to weighted tokens, without a model; and what pages show of them."""

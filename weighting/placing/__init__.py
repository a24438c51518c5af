"""Places of words in the picture: areas, fields, word maps, and their arithmetic in the attention."""

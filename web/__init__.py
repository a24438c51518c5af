"""What users see: pictures, the token ruler, the lab, and the route that feeds them."""

"""Front ends for users: pictures, the token ruler, the lab, and the route that feeds them."""

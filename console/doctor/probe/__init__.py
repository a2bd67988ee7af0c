"""`koordgate doctor --probe`: a Pod a node shows that containers get the cards that they were given, and no others."""

"""Background work that a site has promised to do: admitted, claimed under a lease, and accounted for."""

"""The requests of clients, as the router reads them."""

"""A shop with live orders: the quickest way to see stream tables work."""

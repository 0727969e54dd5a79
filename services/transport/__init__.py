"""How weight bytes travel over one link; the only place that knows the wire."""

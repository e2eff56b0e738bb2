"""What the broker observes of itself: samples, time series, what needs attention."""

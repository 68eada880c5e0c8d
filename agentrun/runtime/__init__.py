"""The verbs: commands from outside, the segment, what a body may do, leases, and the sweep."""

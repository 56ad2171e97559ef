"""Data sets of any size looked at through their headers: sources in parts, one row an item, engines, report."""

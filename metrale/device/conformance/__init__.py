"""Programs of device calls that show whether an engine keeps its promises."""
